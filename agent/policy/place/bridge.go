// SPDX-License-Identifier: Apache-2.0

package place

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/nftables"
	"github.com/berth-dev/berth/cni/rtnl"
)

// ErrNoBridgeFilter is returned by Show where the kernel cannot show the packets of bridges.
var ErrNoBridgeFilter = errors.New("the node cannot see packets between pods on one bridge: load the kernel module br_netfilter (modprobe br_netfilter)")

// journal remembers kernel settings as they were. Its methods are safe in parallel and block
// for a file.
type journal interface {
	// KeepWas is settings.Journal.KeepWas.
	KeepWas(key, was, value string) error
}

// Shower has bridges of the node show their packets to netfilter.
type Shower struct {
	// SysctlRoot is the path of the node's /proc/sys.
	SysctlRoot string
	// Settings may be nil.
	Settings journal
}

// Show makes the packets that a bridge passes from port to port visit the hook forward. It is
// idempotent, and does nothing where there is no such bridge. It blocks for the kernel.
func (s *Shower) Show(bridge string) error {
	link, err := rtnl.LinkOrNil(bridge)
	if err != nil || link == nil {
		return err
	}
	if err := s.load(); err != nil {
		return fmt.Errorf("bridge %s: %w", bridge, err)
	}
	for _, setting := range []rtnl.BridgeSetting{rtnl.NFCallIPTables, rtnl.NFCallIP6Tables} {
		if err := s.turnOn(link, setting); err != nil {
			return err
		}
	}
	return nil
}

func (s *Shower) turnOn(bridge netlink.Link, setting rtnl.BridgeSetting) error {
	on, known, err := rtnl.GetBridge(bridge, setting)
	if err != nil || on {
		return err
	}
	if !known {
		return fmt.Errorf("bridge %s: %w", bridge.Attrs().Name, ErrNoBridgeFilter)
	}
	if s.Settings != nil {
		// As seen from /proc/sys.
		key := filepath.Join("../../sys/class/net", bridge.Attrs().Name, "bridge", setting.String())
		if err := s.Settings.KeepWas(key, "0", "1"); err != nil {
			return err
		}
	}
	return rtnl.SetBridge(bridge, setting, true)
}

// load has the kernel load br_netfilter, if it is not there.
func (s *Shower) load() error {
	there := func() (bool, error) {
		_, err := os.Stat(filepath.Join(s.SysctlRoot, "net/bridge/bridge-nf-call-iptables"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, fmt.Errorf("look for br_netfilter: %w", err)
		}
		return err == nil, nil
	}
	if is, err := there(); err != nil || is {
		return err
	}
	if err := request(); err != nil {
		return fmt.Errorf("%w (%w)", ErrNoBridgeFilter, err)
	}
	is, err := there()
	if err == nil && !is {
		err = ErrNoBridgeFilter
	}
	return err
}

// request makes a rule with the match physdev of iptables and deletes it: for that the kernel
// loads br_netfilter, which otherwise takes a capability that the agent does not have. Nobody
// sees the rule.
func request() error {
	// struct xt_physdev_info: two names with their masks, a byte, and that the packet is bridged.
	const bitmask, bridged, size = 4*16 + 1, 0x04, 72
	info := make([]byte, size)
	info[bitmask] = bridged
	probe := &nftables.Table{Family: nftables.IPv4, Name: netfilter.TableName + "-bridges", Chains: []*nftables.Chain{
		{Name: "probe", Rules: nftables.Rules(nftables.NewRule("bridged", nftables.Match("physdev", info)))},
	}}
	var tx nftables.Transaction
	tx.Make(probe)
	tx.DeleteTable(probe)
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("ask for br_netfilter: %w", err)
	}
	return nil
}
