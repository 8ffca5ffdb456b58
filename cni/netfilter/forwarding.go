// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/nftables"
)

// Comments of the rules in forward chains of other programs.
const fromPods, toPods = "berth: packets from pods", "berth: packets to pods"

// forwardRules returns the rules in the form of iptables' "-i bth+ -j ACCEPT", so that its programs
// can list and save them.
func forwardRules() []nftables.Rule {
	return []nftables.Rule{
		nftables.PlainRule(fromPods, nftables.IIFName.Is([]byte(LinkPrefix)...), nftables.Counter, nftables.Accept),
		nftables.PlainRule(toPods, nftables.OIFName.Is([]byte(LinkPrefix)...), nftables.Counter, nftables.Accept),
	}
}

// forwardChain is a base chain of another program that drops unknown packets: by its policy, or by
// a last rule without conditions.
type forwardChain struct {
	chain nftables.KernelChain
	// last is the last rule, nil if the policy drops.
	last *nftables.KernelRule
	// ours are our rules before last, misplaced our rules after it.
	ours, misplaced []nftables.KernelRule
}

// forwardChains lists the chains of other programs that drop forwarded packets, or have
// rules of ours.
func forwardChains() ([]forwardChain, error) {
	chains, err := nftables.BaseChains(nftables.Forward)
	if err != nil {
		return nil, err
	}
	var all []forwardChain
	for _, c := range chains {
		if c.Owned || strings.HasPrefix(c.Table.Name, TablePrefix) || !isRouted(c.Table.Family) {
			continue
		}
		rules, err := c.ListRules()
		if err != nil {
			return nil, err
		}
		f := forwardChain{chain: c}
		for _, r := range rules {
			isOurs := r.Says(fromPods) || r.Says(toPods)
			switch {
			case isOurs && f.last != nil:
				f.misplaced = append(f.misplaced, r)
			case isOurs:
				f.ours = append(f.ours, r)
			case r.RefusesAll() && f.last == nil:
				f.last = &r
			}
		}
		if c.Base.Drops || f.last != nil || len(f.ours) > 0 {
			all = append(all, f)
		}
	}
	return all, nil
}

func isRouted(f nftables.TableFamily) bool {
	return f == nftables.INet || f == nftables.IPv4 || f == nftables.IPv6
}

func (f forwardChain) whole() bool {
	return len(f.ours) == len(forwardRules()) && len(f.misplaced) == 0
}

// replace replaces our rules in an nftables chain, which may be gone by now. Without rules it
// removes ours. Our rules come after the owner's rules, which so decide first, and before a last
// rule that drops the rest.
func (f forwardChain) replace(rules ...nftables.Rule) error {
	var tx nftables.Transaction
	for _, r := range slices.Concat(f.ours, f.misplaced) {
		tx.DeleteRule(f.chain, r)
	}
	for _, r := range rules {
		tx.InsertRule(f.chain, f.last, r)
	}
	if err := tx.Commit(); !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// acceptForwarded makes the node forward pods' packets if the firewall of another program drops
// unknown packets.
func acceptForwarded() error {
	chains, err := forwardChains()
	errs := []error{err}
	for _, f := range chains {
		if !f.whole() {
			errs = append(errs, f.replace(forwardRules()...))
		}
	}
	return errors.Join(errs...)
}

// checkForwarded returns ErrMissing if an nftables chain drops pods' packets.
func checkForwarded() error {
	chains, err := forwardChains()
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
	mu.Lock()
	defer mu.Unlock()
	return acceptForwarded()
}

// removeForwarded removes our rules from the nftables chains of other programs if no pod and no
// link for pods is left.
func removeForwarded() error {
	links, err := inetTable.Keys(linksSet)
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
	chains, err := forwardChains()
	errs := []error{err}
	for _, f := range chains {
		if slices.Concat(f.ours, f.misplaced) != nil {
			errs = append(errs, f.replace())
		}
	}
	return errors.Join(errs...)
}
