// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/nftables"
)

// Interface names Berth's way to the node's netfilter. It needs no program of the node or of an
// image.
const Interface = "nftables over netlink"

// ErrUnsupported is returned where the kernel lacks a feature that pods with a floating IP need.
var ErrUnsupported = errors.New("the kernel's nftables is not complete")

// Support lists the nftables features of the node's kernel.
type Support struct {
	// Kernel is the kernel's release.
	Kernel string
	// Has and Lacks name features.
	Has, Lacks []string
	// Needed names the features of Lacks without which no pod gets a floating IP, with the kernel's
	// options for them.
	Needed []string
}

// Err returns ErrUnsupported with the needed features that are missing, nil without any.
func (s Support) Err() error {
	if len(s.Needed) == 0 {
		return nil
	}
	return fmt.Errorf("%w: kernel %s lacks %s; load the modules (modprobe) or run a kernel that has them", ErrUnsupported, s.Kernel, strings.Join(s.Needed, ", "))
}

// feature is used by the table, and a kernel may be built without it.
type feature struct {
	name, option string
	// needed says that pods with a floating IP need it; the others are for host ports, the
	// overlay, and interfaces in the pools' networks.
	needed bool
	table  nftables.Table
}

// probeTable is the table that features are tried in, and that is deleted in the same
// transaction: nobody ever sees it.
const probeTable = TableName + "-probe"

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
	return []feature{
		{"inet tables", "CONFIG_NF_TABLES_INET", true, table(nftables.INet, filter(nftables.Prerouting), nftables.V4.SAddr.Is(0, 0, 0, 0))},
		{"sets", "CONFIG_NF_TABLES", true, sets},
		{"arp tables", "CONFIG_NF_TABLES_ARP", true, table(nftables.ARP, filter(nftables.ARPInput))},
		{"ct", "CONFIG_NFT_CT", true, table(nftables.INet, filter(nftables.Prerouting), nftables.DestinationTranslated)},
		{"nat", "CONFIG_NFT_NAT", true, table(nftables.INet, nat(), nftables.V4.Is, nftables.V4.KeepSource())},
		{"limit", "CONFIG_NFT_LIMIT", true, table(nftables.INet, filter(nftables.Forward), nftables.V4.Is, nftables.V4.NextHop().Is(0, 0, 0, 0), nftables.MoreThan(1))},
		{"objref", "CONFIG_NFT_OBJREF", true, counted},
		{"masquerade", "CONFIG_NFT_MASQ", false, table(nftables.INet, nat(), nftables.Masquerade)},
		{"fib", "CONFIG_NFT_FIB_INET", false, table(nftables.INet, filter(nftables.Prerouting), nftables.ToNode)},
		{"netdev ingress", "CONFIG_NF_TABLES_NETDEV", false, table(nftables.NetDev, filter(nftables.Ingress))},
		{"netdev egress", "CONFIG_NETFILTER_EGRESS", false, table(nftables.NetDev, filter(nftables.Egress))},
	}
}

// Detect tries each feature that Berth's rules need, in a transaction that leaves nothing. It
// blocks for the kernel, which loads modules for it. It returns an error where nftables cannot be
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
			if f.needed {
				s.Needed = append(s.Needed, fmt.Sprintf("%s (%s: %v)", f.name, f.option, err))
			}
		}
	}
	return s, nil
}

// Detector remembers the kernel's features. It looks again while one is missing that pods with a
// floating IP need: a module may be loaded later. Methods are safe in parallel.
type Detector struct {
	// Detect is [Detect] but in tests.
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
