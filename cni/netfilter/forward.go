// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"bytes"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// forwardRules are the comments of the rules in forward chains of other programs.
var forwardRules = []struct {
	comment string
	key     expr.MetaKey
}{
	{"berth: packets from pods", expr.MetaKeyIIFNAME},
	{"berth: packets to pods", expr.MetaKeyOIFNAME},
}

// forwardChain is a base chain of another program that drops what it does not know: by its
// policy, or by a last rule without conditions.
type forwardChain struct {
	chain *nftables.Chain
	// last is the last rule, nil where the policy drops.
	last *nftables.Rule
	// ours are the rules in front of last, misplaced are those behind.
	ours, misplaced []*nftables.Rule
}

// forwardChains lists the chains of other programs that drop forwarded packets, or have
// rules of ours.
func forwardChains(conn *nftables.Conn) ([]forwardChain, error) {
	chains, err := conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list nftables chains: %w", err)
	}
	locked, err := lockedTables(conn)
	if err != nil {
		return nil, err
	}
	var all []forwardChain
	for _, c := range chains {
		if c.Hooknum == nil || *c.Hooknum != *nftables.ChainHookForward || strings.HasPrefix(c.Table.Name, TablePrefix) || !isRouted(c.Table.Family) {
			continue
		}
		if locked[tableID{c.Table.Family, c.Table.Name}] {
			continue
		}
		rules, err := conn.GetRules(c.Table, c)
		if err != nil {
			// The chain is gone, or has what our library cannot read: pods whose packets
			// it does not drop must not suffer.
			continue
		}
		f := forwardChain{chain: c}
		for _, r := range rules {
			switch {
			case isForwardRule(r) && f.last != nil:
				f.misplaced = append(f.misplaced, r)
			case isForwardRule(r):
				f.ours = append(f.ours, r)
			case refusesAll(r) && f.last == nil:
				f.last = r
			}
		}
		drops := c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop || f.last != nil
		if drops || len(f.ours) > 0 {
			all = append(all, f)
		}
	}
	return all, nil
}

type tableID struct {
	family nftables.TableFamily
	name   string
}

// lockedTables are those that only their owner may change.
func lockedTables(conn *nftables.Conn) (map[tableID]bool, error) {
	const owner = 2 // NFT_TABLE_F_OWNER
	tables, err := conn.ListTables()
	if err != nil {
		return nil, fmt.Errorf("list nftables tables: %w", err)
	}
	all := map[tableID]bool{}
	for _, t := range tables {
		// The library reads the flags in the byte order of the machine.
		all[tableID{t.Family, t.Name}] = (t.Flags|bits.ReverseBytes32(t.Flags))&owner != 0
	}
	return all, nil
}

func isRouted(f nftables.TableFamily) bool {
	return f == nftables.TableFamilyINet || f == nftables.TableFamilyIPv4 || f == nftables.TableFamilyIPv6
}

func isForwardRule(r *nftables.Rule) bool {
	for _, f := range forwardRules {
		if bytes.Contains(r.UserData, []byte(f.comment)) {
			return true
		}
	}
	return false
}

// refusesAll returns whether a rule drops or rejects every packet that comes to it.
func refusesAll(r *nftables.Rule) bool {
	refuses := false
	for _, e := range r.Exprs {
		switch e := e.(type) {
		case *expr.Counter, *expr.Log:
		case *expr.Match:
			if e.Name != "comment" {
				return false
			}
		case *expr.Verdict:
			refuses = e.Kind == expr.VerdictDrop
		case *expr.Reject:
			refuses = true
		case *expr.Target:
			refuses = e.Name == "REJECT"
		default:
			return false
		}
	}
	return refuses
}

// whole returns whether the chain has our rules where they count.
func (f forwardChain) whole() bool { return len(f.ours) == len(forwardRules) && len(f.misplaced) == 0 }

// accept puts our rules behind those of the chain's owner, so that these decide first, and
// in front of a last rule that drops the rest.
func (f forwardChain) accept(conn *nftables.Conn) error {
	if f.whole() {
		return nil
	}
	for _, r := range append(f.ours, f.misplaced...) {
		if err := conn.DelRule(r); err != nil {
			return err
		}
	}
	for _, rule := range forwardRules {
		r := &nftables.Rule{Table: f.chain.Table, Chain: f.chain, UserData: userdata.AppendString(nil, userdata.TypeComment, rule.comment)}
		// As iptables writes "-i bth+ -j ACCEPT", so that its programs can list and save it.
		r.Exprs = []expr.Any{
			&expr.Meta{Key: rule.key, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte(LinkPrefix)},
			&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictAccept},
		}
		if f.last != nil {
			r.Position = f.last.Handle
			conn.InsertRule(r)
		} else {
			conn.AddRule(r)
		}
	}
	return f.flush(conn)
}

// remove takes our rules out of the chain.
func (f forwardChain) remove(conn *nftables.Conn) error {
	for _, r := range append(f.ours, f.misplaced...) {
		if err := conn.DelRule(r); err != nil {
			return err
		}
	}
	return f.flush(conn)
}

// flush writes the changes of one chain, which may be gone by now.
func (f forwardChain) flush(conn *nftables.Conn) error {
	if err := conn.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("write nftables chain %s of table %s: %w", f.chain.Name, f.chain.Table.Name, err)
	}
	return nil
}

// acceptForwarded makes the node forward pods' packets where the firewall of another
// program drops what it does not know.
func acceptForwarded(conn *nftables.Conn) error {
	chains, err := forwardChains(conn)
	errs := []error{err}
	for _, f := range chains {
		errs = append(errs, f.accept(conn))
	}
	return errors.Join(errs...)
}

// checkForwarded returns ErrMissing where a chain drops pods' packets.
func checkForwarded(conn *nftables.Conn) error {
	chains, err := forwardChains(conn)
	errs := []error{err}
	for _, f := range chains {
		if !f.whole() {
			errs = append(errs, fmt.Errorf("%w: chain %s of table %s drops the packets of pods", ErrMissing, f.chain.Name, f.chain.Table.Name))
		}
	}
	return errors.Join(errs...)
}

// AcceptForwarded makes other programs' firewalls forward packets from and to links that
// begin with LinkPrefix. Allow does so, too.
func AcceptForwarded() error {
	return locked(func(conn *nftables.Conn, _ *table) error { return acceptForwarded(conn) })
}

// removeForwarded takes our rules out of the chains of other programs where no pod is left,
// and no link for pods.
func (t *table) removeForwarded(conn *nftables.Conn) error {
	links, err := keys(conn, t.links)
	if err != nil || len(links) > 0 {
		return err
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	if slices.ContainsFunc(interfaces, func(i net.Interface) bool { return strings.HasPrefix(i.Name, LinkPrefix) }) {
		return nil
	}
	chains, err := forwardChains(conn)
	errs := []error{err}
	for _, f := range chains {
		if slices.Concat(f.ours, f.misplaced) != nil {
			errs = append(errs, f.remove(conn))
		}
	}
	return errors.Join(errs...)
}
