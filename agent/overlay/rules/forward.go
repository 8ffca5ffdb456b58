// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// forwardComment begins the comments of the rules in forward chains of other programs.
const forwardComment = "berth-overlay: "

// foreign is a forward chain of another program that drops what it does not know: by its
// policy, or by a last rule without conditions. A packet must pass every such chain, so that a
// rule of our own table cannot accept it for them.
type foreign struct {
	chain *nftables.Chain
	// last is the first rule that drops everything, nil where there is none.
	last *nftables.Rule
	// ours are our rules in front of last; misplaced are those behind, which do nothing.
	ours, misplaced []*nftables.Rule
}

func (f foreign) drops() bool {
	return f.last != nil || f.chain.Policy != nil && *f.chain.Policy == nftables.ChainPolicyDrop
}

// foreigns lists the forward chains of other programs. A chain that cannot be read, because it
// is gone or has what the library does not know, is left out.
func foreigns(conn *nftables.Conn) ([]foreign, error) {
	chains, err := conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list nftables chains: %w", err)
	}
	var all []foreign
	for _, c := range chains {
		if c.Hooknum == nil || *c.Hooknum != *nftables.ChainHookForward || c.Table.Name == TableName {
			continue
		}
		switch c.Table.Family {
		case nftables.TableFamilyINet, nftables.TableFamilyIPv4, nftables.TableFamilyIPv6:
		default:
			continue
		}
		listed, err := conn.GetRules(c.Table, c)
		if err != nil {
			continue
		}
		f := foreign{chain: c}
		for _, r := range listed {
			switch {
			case bytes.Contains(r.UserData, []byte(forwardComment)) && f.last == nil:
				f.ours = append(f.ours, r)
			case bytes.Contains(r.UserData, []byte(forwardComment)):
				f.misplaced = append(f.misplaced, r)
			case f.last == nil && dropsAll(r):
				f.last = r
			}
		}
		all = append(all, f)
	}
	return all, nil
}

// dropsAll returns whether a rule drops or rejects every packet that comes to it.
func dropsAll(r *nftables.Rule) bool {
	drops := false
	for _, e := range r.Exprs {
		switch e := e.(type) {
		case *expr.Counter, *expr.Log:
		case *expr.Match:
			if e.Name != "comment" {
				return false
			}
		case *expr.Verdict:
			drops = e.Kind == expr.VerdictDrop
		case *expr.Reject:
			drops = true
		case *expr.Target:
			drops = e.Name == "REJECT"
		default:
			return false
		}
	}
	return drops
}

// AcceptForwarded makes the firewalls of other programs forward the packets of the bridge's
// pods, behind their own rules, and returns whether it changed one. An empty bridge takes all
// such rules away.
func AcceptForwarded(bridge string) (changed bool, err error) {
	conn, err := nftables.New()
	if err != nil {
		return false, fmt.Errorf("open nftables: %w", err)
	}
	chains, err := foreigns(conn)
	if err != nil {
		return false, err
	}
	c := content{bridge: bridge}
	directions := map[string]expr.MetaKey{"from": expr.MetaKeyIIFNAME, "to": expr.MetaKeyOIFNAME}
	var errs []error
	for _, f := range chains {
		want := f.drops() && bridge != ""
		if want && len(f.ours) == len(directions) && len(f.misplaced) == 0 || !want && len(f.ours)+len(f.misplaced) == 0 {
			continue
		}
		for _, r := range append(f.ours, f.misplaced...) {
			errs = append(errs, conn.DelRule(r))
		}
		for direction, key := range directions {
			if !want {
				break
			}
			r := &nftables.Rule{Table: f.chain.Table, Chain: f.chain, UserData: userdata.AppendString(nil, userdata.TypeComment, forwardComment+"packets "+direction+" pods")}
			// As iptables writes "-i bridge -j ACCEPT", so that its programs can list it.
			r.Exprs = append(c.link(key, expr.CmpOpEq), &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictAccept})
			if f.last != nil {
				r.Position = f.last.Handle
				conn.InsertRule(r)
			} else {
				conn.AddRule(r)
			}
		}
		// A chain that is gone by now, or whose owner forbids changes, keeps no other from them.
		switch err := conn.Flush(); {
		case err == nil:
			changed = true
		case !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EPERM):
			errs = append(errs, fmt.Errorf("write nftables chain %s of table %s: %w", f.chain.Name, f.chain.Table.Name, err))
		}
	}
	return changed, errors.Join(errs...)
}

// Accepted returns whether there are rules of AcceptForwarded.
func Accepted() (bool, error) {
	conn, err := nftables.New()
	if err != nil {
		return false, fmt.Errorf("open nftables: %w", err)
	}
	chains, err := foreigns(conn)
	return slices.ContainsFunc(chains, func(f foreign) bool { return len(f.ours)+len(f.misplaced) > 0 }), err
}
