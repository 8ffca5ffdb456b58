// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/policy/iptables"
	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/agent/policy/table"
	"github.com/berth-dev/berth/cni/nftables"
	"github.com/berth-dev/berth/cni/xtables"
)

// Backend brings rulesets into the kernel.
type Backend string

// The backends. BackendAuto stands for the backend of the node's kube-proxy and kubelet, and
// BackendIPTables for their variant of iptables.
const (
	BackendAuto           Backend = "auto"
	BackendIPTables       Backend = "iptables"
	BackendNFTables       Backend = "nftables"
	BackendIPTablesNFT    Backend = "iptables-nft"
	BackendIPTablesLegacy Backend = "iptables-legacy"
)

var allBackends = []Backend{BackendAuto, BackendIPTables, BackendNFTables}

// Validate returns an error for a value that an operator may not give.
func (b Backend) Validate() error {
	if !slices.Contains(allBackends, b) {
		return fmt.Errorf("must be auto, iptables or nftables, is %q", b)
	}
	return nil
}

type node struct {
	// kubeProxy says that kube-proxy has rules of its mode nftables.
	kubeProxy bool
	// variant is the iptables variant of kubelet or kube-proxy. If neither has chains, has is false,
	// and variant is the variant of any other program.
	variant xtables.Variant
	has     bool
	// problem says why iptables and ipset do not work; empty if they do.
	problem string
}

// choose returns the backend of a node, and why. Pure.
func (n node) choose(wanted Backend) (Backend, string, error) {
	variant := Backend("iptables-" + n.variant)
	switch {
	case wanted == BackendNFTables:
		return BackendNFTables, "it was asked for", nil
	case wanted == BackendIPTables && n.problem != "":
		return "", "", fmt.Errorf("cannot enforce network policies through iptables and ipset: %s; use --network-policy-backend=nftables, or a kernel and an image with all that they need", n.problem)
	case wanted == BackendIPTables:
		return variant, "it was asked for", nil
	case n.kubeProxy:
		return BackendNFTables, "kube-proxy is in its mode nftables", nil
	case !n.has:
		return BackendNFTables, "neither kubelet nor kube-proxy has chains of iptables", nil
	case n.problem != "":
		return BackendNFTables, fmt.Sprintf("kubelet or kube-proxy has chains of iptables, but: %s", n.problem), nil
	}
	return variant, "kubelet or kube-proxy has chains of it", nil
}

// ChooseBackend returns the backend for a value that an operator gave, and logs why. It asks the
// kernel.
func ChooseBackend(ctx context.Context, wanted Backend) (Backend, error) {
	var n node
	tables, err := nftables.Tables(0)
	if err != nil && wanted == BackendAuto {
		return "", fmt.Errorf("look for the rules of kube-proxy: %w", err)
	}
	for _, t := range tables {
		n.kubeProxy = n.kubeProxy || t.Name == "kube-proxy"
	}
	if n.variant, n.has = xtables.OfKubernetes(); !n.has {
		n.variant = xtables.Choose()
	}
	if err := iptables.Try(ctx, n.variant); err != nil {
		n.problem = err.Error()
	}
	chosen, why, err := n.choose(wanted)
	if err == nil {
		klog.FromContext(ctx).Info("Chose the backend of network policies", "backend", chosen, "why", why)
	}
	return chosen, err
}

// Shows returns the commands that show the rules to an operator.
func (b Backend) Shows() string {
	if variant, ok := b.variant(); ok {
		return "iptables-" + string(variant) + "-save -t security; ipset list"
	}
	return "nft list table inet " + ruleset.TableName
}

func (b Backend) variant() (xtables.Variant, bool) {
	variant, ok := strings.CutPrefix(string(b), "iptables-")
	return xtables.Variant(variant), ok
}

// Open returns the rules of a network namespace, or of the node if the path is empty.
func (b Backend) Open(netns string) Table {
	if variant, ok := b.variant(); ok {
		return iptables.New(netns, variant)
	}
	return table.New(netns)
}

// present are the backends whose rules a namespace may have.
var present = sync.OnceValue(func() []Backend {
	all := []Backend{BackendNFTables}
	for _, b := range []Backend{BackendIPTablesNFT, BackendIPTablesLegacy} {
		if variant, _ := b.variant(); iptables.Check(variant) == nil {
			all = append(all, b)
		}
	}
	return all
})

// succession is the rules of a backend. It removes the rules of an agent with another backend,
// after its own rules are in the kernel, so that there are rules at any time.
type succession struct {
	Table
	backend Backend
	netns   string
	// done says that other backends have no rules.
	done bool
}

func (b Backend) rules(netns string) Table {
	return &succession{Table: b.Open(netns), backend: b, netns: netns}
}

func (s *succession) Apply(ctx context.Context, rs *ruleset.Ruleset) error {
	if err := s.Table.Apply(ctx, rs); err != nil {
		return err
	}
	return s.end(ctx)
}

func (s *succession) Remove(ctx context.Context) error {
	return errors.Join(s.Table.Remove(ctx), s.end(ctx))
}

func (s *succession) end(ctx context.Context) error {
	if s.done {
		return nil
	}
	if err := removeOthers(ctx, s.netns, s.backend); err != nil {
		return fmt.Errorf("remove the rules of another backend of network policies: %w", err)
	}
	s.done = true
	return nil
}

// removeOthers removes the rules of all backends but one, which may be none, from a network
// namespace.
func removeOthers(ctx context.Context, netns string, stays Backend) error {
	var errs []error
	for _, b := range present() {
		if b != stays {
			errs = append(errs, b.Open(netns).Remove(ctx))
		}
	}
	return errors.Join(errs...)
}
