// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/nftables"
)

// Interface names Berth's interface to the node's netfilter. It needs no program of the node or of
// an image.
const Interface = "nftables over netlink"

// ErrUnsupported is returned if the kernel lacks a feature that pods with a floating IP need.
var ErrUnsupported = errors.New("the kernel's nftables is not complete")

// Support lists the nftables features of the node's kernel.
type Support struct {
	Kernel     string
	Has, Lacks []string
	// Without says what the node cannot do because of missing features that are not in Needed.
	Without []string
	// Needed names the missing features without which no pod gets a floating IP, with their kernel
	// options.
	Needed []string
}

// Err returns ErrUnsupported with the missing needed features, nil if there are none.
func (s Support) Err() error {
	if len(s.Needed) == 0 {
		return nil
	}
	return fmt.Errorf("%w: kernel %s lacks %s; load the modules (modprobe) or run a kernel that has them", ErrUnsupported, s.Kernel, strings.Join(s.Needed, ", "))
}

// feature is a part of nftables that Berth uses and that a kernel may lack.
type feature struct {
	name, option string
	// only says what needs the feature; "" for all pods with a floating IP.
	only  string
	table nftables.Table
}

// probeTable is the table for tries of features. The same transaction deletes it, so nobody ever
// sees it.
const probeTable = TableName + "-probe"

// guarded names the interfaces with direct access to the network, which a guard limits to their
// addresses.
const guarded = "interfaces of berth-sriov and of berth-vlan's modes bridge, macvlan and ipvlan l2 (Linux 5.16 or newer)"

func features() []feature {
	table := func(family nftables.TableFamily, base *nftables.Base, statements ...nftables.Statement) nftables.Table {
		if family == nftables.NetDev {
			base.Device = "lo"
		}
		rule := nftables.NewRule("probe", statements...)
		return nftables.Table{Family: family, Chains: []*nftables.Chain{{Name: "probe", Base: base, Rules: nftables.Rules(rule)}}}
	}
	filter := func(hook nftables.Hook) *nftables.Base { return nftables.Filter(hook, nftables.PriorityFilter) }
	nat := func() *nftables.Base { return nftables.NAT(nftables.Postrouting, nftables.PrioritySrcNAT) }
	sets := nftables.Table{Family: nftables.INet, Sets: []*nftables.Set{{Name: "probe", Key: arrival}}}
	counted := table(nftables.INet, filter(nftables.Prerouting), nftables.CounterNamed("probe"))
	counted.Counters = []string{"probe"}
	times := nftables.Table{Family: nftables.ARP, Sets: []*nftables.Set{{
		Name: "probe", Key: arrival, Timeout: time.Minute,
		Elements: nftables.Elements(nftables.Element{Key: nftables.AppendAddr(nftables.AppendName(nil, "lo"), netip.IPv4Unspecified()), Timeout: time.Second}),
	}}}
	return []feature{
		{"inet tables", "CONFIG_NF_TABLES_INET", "", table(nftables.INet, filter(nftables.Prerouting), nftables.V4.SAddr.Is(0, 0, 0, 0))},
		{"sets", "CONFIG_NF_TABLES", "", sets},
		{"arp tables", "CONFIG_NF_TABLES_ARP", "", table(nftables.ARP, filter(nftables.ARPInput))},
		{"times of elements", "CONFIG_NF_TABLES_ARP", "--silence-after", times},
		{"ct", "CONFIG_NFT_CT", "", table(nftables.INet, filter(nftables.Prerouting), nftables.DestinationTranslated)},
		{"nat", "CONFIG_NFT_NAT", "", table(nftables.INet, nat(), nftables.V4.Is, nftables.V4.KeepSource())},
		{"limit", "CONFIG_NFT_LIMIT", "", table(nftables.INet, filter(nftables.Forward), nftables.V4.Is, nftables.V4.NextHop().Is(0, 0, 0, 0), nftables.MoreThan(1))},
		{"objref", "CONFIG_NFT_OBJREF", "", counted},
		{"masquerade", "CONFIG_NFT_MASQ", "host ports, the overlay", table(nftables.INet, nat(), nftables.Masquerade)},
		{"fib", "CONFIG_NFT_FIB_INET", "host ports", table(nftables.INet, filter(nftables.Prerouting), nftables.ToNode)},
		{"netdev ingress", "CONFIG_NF_TABLES_NETDEV", guarded, table(nftables.NetDev, filter(nftables.Ingress))},
		{"netdev egress", "CONFIG_NETFILTER_EGRESS", guarded, table(nftables.NetDev, filter(nftables.Egress))},
	}
}

// Detect tries each feature that Berth's rules need, in a transaction that leaves nothing behind.
// It blocks for the kernel, which may load modules. It returns an error if nftables cannot be
// written at all.
func Detect() (Support, error) { return detect(features()) }

func detect(all []feature) (Support, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return Support{}, fmt.Errorf("read the kernel's release: %w", err)
	}
	s := Support{Kernel: unix.ByteSliceToString(name.Release[:])}
	for _, f := range all {
		f.table.Name = probeTable
		var tx nftables.Transaction
		tx.Make(&f.table)
		tx.DeleteTable(&f.table)
		err := tx.Commit()
		switch {
		case err == nil:
			s.Has = append(s.Has, f.name)
		case errors.Is(err, unix.EPERM):
			return Support{}, fmt.Errorf("write nftables (the agent needs the capability NET_ADMIN): %w", err)
		default:
			s.Lacks = append(s.Lacks, f.name)
			missing := fmt.Sprintf("%s (%s: %v)", f.name, f.option, err)
			if f.only == "" {
				s.Needed = append(s.Needed, missing)
			} else {
				s.Without = append(s.Without, fmt.Sprintf("no %s, for want of %s", f.only, missing))
			}
		}
	}
	return s, nil
}

// Detector remembers the kernel's features. While a needed feature is missing it looks again,
// because a module may be loaded later. Methods are safe in parallel.
type Detector struct {
	// Detect is [Detect], except in tests.
	Detect func() (Support, error)

	mu sync.Mutex
	ok bool
}

// Ready returns an error that names the missing features.
func (d *Detector) Ready() error {
	d.mu.Lock()
	ok := d.ok
	d.mu.Unlock()
	if ok {
		return nil
	}
	s, err := d.Detect()
	if err == nil {
		err = s.Err()
	}
	d.mu.Lock()
	d.ok = err == nil
	d.mu.Unlock()
	return err
}
