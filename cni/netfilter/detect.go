// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Interface is how Berth speaks to the node's netfilter. It needs no program of the node or
// of an image.
const Interface = "nftables over netlink"

// ErrUnsupported is returned where the kernel lacks what pods with a floating IP need.
var ErrUnsupported = errors.New("the kernel's nftables is not complete")

// Support is what the kernel of the node has of nftables.
type Support struct {
	// Kernel is the kernel's release.
	Kernel string
	// Has and Lacks name features.
	Has, Lacks []string
	// Needed names those of Lacks without which no pod gets a floating IP, with the kernel's
	// options for them.
	Needed []string
}

// Err returns ErrUnsupported with what is missing, nil where nothing that is needed is.
func (s Support) Err() error {
	if len(s.Needed) == 0 {
		return nil
	}
	return fmt.Errorf("%w: kernel %s lacks %s; load the modules (modprobe) or run a kernel that has them", ErrUnsupported, s.Kernel, strings.Join(s.Needed, ", "))
}

// feature is something that a kernel may be built without. try adds what uses it to a
// transaction.
type feature struct {
	name, option string
	// needed says that pods with a floating IP need it; the others are for host ports, the
	// overlay, and interfaces in the pools' networks.
	needed bool
	try    func(*nftables.Conn, *nftables.Table) *nftables.Table
}

// probeTable is the table that features are tried in, and that is deleted in the same
// transaction: nobody ever sees it.
const probeTable = TableName + "-probe"

func features() []feature {
	chain := func(family nftables.TableFamily, kind nftables.ChainType, hook *nftables.ChainHook, exprs ...expr.Any) func(*nftables.Conn, *nftables.Table) *nftables.Table {
		return func(conn *nftables.Conn, table *nftables.Table) *nftables.Table {
			table.Family = family
			conn.AddTable(table)
			c := NewChain(table, "probe", kind, hook, *nftables.ChainPriorityFilter)
			if kind == nftables.ChainTypeNAT {
				c.Priority = nftables.ChainPriorityNATSource
			}
			if family == nftables.TableFamilyNetdev {
				c.Device = "lo"
			}
			conn.AddChain(c.Chain)
			if len(exprs) > 0 {
				conn.AddRule(&nftables.Rule{Table: table, Chain: c.Chain, Exprs: exprs})
			}
			return table
		}
	}
	const inet = nftables.TableFamilyINet
	filter, nat := nftables.ChainTypeFilter, nftables.ChainTypeNAT
	ipv4 := append([]expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}}, equal(unix.NFPROTO_IPV4)...)
	source := payload(expr.PayloadBaseNetworkHeader, 12, 4, 1)
	return []feature{
		{"inet tables", "CONFIG_NF_TABLES_INET", true, chain(inet, filter, nftables.ChainHookPrerouting, source...)},
		{"sets", "CONFIG_NF_TABLES", true, func(conn *nftables.Conn, table *nftables.Table) *nftables.Table {
			table.Family = inet
			conn.AddTable(table)
			// The transaction keeps an error of it until the end.
			_ = conn.AddSet(&nftables.Set{Table: table, Name: "probe", KeyType: nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeIPAddr), Concatenation: true}, nil)
			return table
		}},
		{"arp tables", "CONFIG_NF_TABLES_ARP", true, chain(nftables.TableFamilyARP, filter, nftables.ChainHookPrerouting)},
		{"ct", "CONFIG_NFT_CT", true, chain(inet, filter, nftables.ChainHookPrerouting, &expr.Ct{Key: expr.CtKeySTATUS, Register: 1})},
		{"nat", "CONFIG_NFT_NAT", true, chain(inet, nat, nftables.ChainHookPostrouting,
			append(append(ipv4, source...), &expr.NAT{Type: expr.NATTypeSourceNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegAddrMax: 1})...)},
		{"masquerade", "CONFIG_NFT_MASQ", false, chain(inet, nat, nftables.ChainHookPostrouting, &expr.Masq{})},
		{"fib", "CONFIG_NFT_FIB_INET", false, chain(inet, filter, nftables.ChainHookPrerouting, &expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true})},
		{"netdev ingress", "CONFIG_NF_TABLES_NETDEV", false, chain(nftables.TableFamilyNetdev, filter, nftables.ChainHookIngress)},
		{"netdev egress", "CONFIG_NETFILTER_EGRESS", false, chain(nftables.TableFamilyNetdev, filter, nftables.ChainHookEgress)},
	}
}

// Detect tries what Berth's rules need, each feature in a transaction that leaves nothing. It
// blocks for the kernel, which loads modules for it. It returns an error where nftables
// cannot be written at all.
func Detect() (Support, error) { return detect(features()) }

func detect(all []feature) (Support, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return Support{}, fmt.Errorf("read the kernel's release: %w", err)
	}
	s := Support{Kernel: unix.ByteSliceToString(name.Release[:])}
	for _, f := range all {
		conn, err := Open()
		if err != nil {
			return Support{}, err
		}
		table := f.try(conn, &nftables.Table{Name: probeTable})
		conn.DelTable(table)
		err = conn.Flush()
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

// Detector remembers what the kernel has. It looks again as long as something is missing that
// pods with a floating IP need: a module may be loaded later. Methods are safe in parallel.
type Detector struct {
	// Detect is [Detect] but in tests.
	Detect func() (Support, error)

	mu sync.Mutex
	ok bool
}

// Ready returns an error that says what is missing.
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
