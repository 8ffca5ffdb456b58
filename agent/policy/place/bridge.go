// SPDX-License-Identifier: Apache-2.0

package place

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/nftables"
	"github.com/berth-dev/berth/cni/rtnl"
)

// ErrNoBridgeFilter is returned by Show if the kernel cannot show the packets of bridges.
var ErrNoBridgeFilter = errors.New("the node cannot see packets between pods on one bridge: load the kernel module br_netfilter (modprobe br_netfilter)")

// journal remembers the original kernel settings. Its methods are safe in parallel and block for a
// file.
type journal interface {
	// KeepWas is settings.Journal.KeepWas.
	KeepWas(key, was, value string) error
}

// Shower makes bridges of the node show their packets to netfilter.
type Shower struct {
	// SysctlRoot is the path of the node's /proc/sys.
	SysctlRoot string
	// Settings may be nil.
	Settings journal

	// request replaces the function of that name in tests.
	request func() error
}

// Show makes the packets that a bridge passes from port to port visit the hook forward. It is
// idempotent, and does nothing if the bridge does not exist. It blocks for the kernel.
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
		// The path is relative to /proc/sys.
		key := filepath.Join("../../sys/class/net", bridge.Attrs().Name, "bridge", setting.String())
		if err := s.Settings.KeepWas(key, "0", "1"); err != nil {
			return err
		}
	}
	return rtnl.SetBridge(bridge, setting, true)
}

// ofAllBridges are the settings, below SysctlRoot, by which all bridges of a network namespace show
// their packets to netfilter. The kernel sets them when it loads br_netfilter.
var ofAllBridges = []string{"net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables", "net/bridge/bridge-nf-call-arptables"}

// load makes the kernel load br_netfilter, if necessary. All bridges except bridges of pods still
// do not show their packets.
func (s *Shower) load() error {
	there := func() (bool, error) {
		_, err := os.Stat(filepath.Join(s.SysctlRoot, ofAllBridges[0]))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, fmt.Errorf("look for br_netfilter: %w", err)
		}
		return err == nil, nil
	}
	if is, err := there(); err != nil || is {
		return err
	}
	if folder := filepath.Join(s.SysctlRoot, "net"); unix.Access(folder, unix.W_OK) != nil {
		return fmt.Errorf("%w; the agent does not, because the packets of all bridges would then pass the node's firewalls, which it can only keep where %s is writable", ErrNoBridgeFilter, folder)
	}
	ask := request
	if s.request != nil {
		ask = s.request
	}
	if err := ask(); err != nil {
		return fmt.Errorf("%w (%w)", ErrNoBridgeFilter, err)
	}
	if is, err := there(); err != nil || !is {
		return cmp.Or(err, ErrNoBridgeFilter)
	}
	for _, key := range ofAllBridges {
		if err := os.WriteFile(filepath.Join(s.SysctlRoot, key), []byte("0"), 0o644); err != nil {
			return fmt.Errorf("keep the packets of other bridges from netfilter: %w", err)
		}
	}
	return nil
}

// request makes and deletes a rule with the match physdev of iptables, for which the kernel loads
// br_netfilter: to load it directly needs a capability that the agent does not have. Nobody sees
// the rule.
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
