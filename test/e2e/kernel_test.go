// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/veth/wire"
	"github.com/berth-dev/berth/test/lab"
)

// kernel has everything that a node's kernel carries for floating addresses. Addresses
// are sorted.
type kernel struct {
	// Answered are the addresses that the node answers ARP and ND for.
	Answered []string
	// Routed are addresses that lead to a pod, Out addresses whose traffic has a way out.
	Routed, Out []string
	// Links are the host ends, with true where they are up.
	Links map[string]bool
}

// kernelOf looks at a node that is up.
func kernelOf(node *lab.Node) (k kernel, err error) {
	err = node.Do(func() error {
		k.Links = map[string]bool{}
		links, err := netlinksafe.LinkList()
		if err != nil {
			return fmt.Errorf("list links: %w", err)
		}
		for _, link := range links {
			if strings.HasPrefix(link.Attrs().Name, wire.LinkPrefix) {
				k.Links[link.Attrs().Name] = link.Attrs().Flags&net.FlagUp != 0
			}
		}
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			if err := k.read(family); err != nil {
				return err
			}
		}
		return nil
	})
	for _, list := range [][]string{k.Answered, k.Routed, k.Out} {
		slices.Sort(list)
	}
	return k, err
}

func (k *kernel) read(family int) error {
	proxies, err := netlink.NeighProxyList(0, family)
	if err != nil {
		return fmt.Errorf("list proxy neighbours: %w", err)
	}
	for _, p := range proxies {
		k.Answered = append(k.Answered, p.IP.String())
	}
	filter := &netlink.Route{Protocol: rtnl.Protocol, Table: unix.RT_TABLE_MAIN}
	routes, err := netlinksafe.RouteListFiltered(family, filter, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		k.Routed = append(k.Routed, r.Dst.IP.String())
	}
	rules, err := netlinksafe.RuleList(family)
	if err != nil {
		return fmt.Errorf("list rules: %w", err)
	}
	for _, r := range routes {
		if slices.ContainsFunc(rules, func(rule netlink.Rule) bool {
			return rule.Protocol == rtnl.Protocol && rule.Priority == wire.PriorityNetwork && rule.Src != nil && rule.Src.Contains(r.Dst.IP)
		}) {
			k.Out = append(k.Out, r.Dst.IP.String())
		}
	}
	return nil
}

// carries says whether anything in the kernel is for the address.
func (k *kernel) carries(address string) bool {
	return slices.Contains(k.Answered, address) || slices.Contains(k.Routed, address) || slices.Contains(k.Out, address)
}

// recordsOf returns what the node's agent has written down: a copy, because the
// agent holds the lock of its file. A copy of a file that is being written may
// be unusable; that is an error, and to be tried again.
func recordsOf(ctx context.Context, t *testing.T, node *lab.Node) ([]*state.Container, error) {
	raw, err := node.Exec(ctx, "cat", "/run/berth/state.db")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(t.TempDir(), node.Name()+".db")
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		return nil, err
	}
	store, err := state.Open(file)
	if err != nil {
		return nil, err
	}
	defer store.Close()
	return store.List(), nil
}
