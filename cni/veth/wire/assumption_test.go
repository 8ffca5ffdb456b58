// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
)

// A node that answers for more than its pods' addresses, or goes on after its cable was out, is not
// ready, and says why.
func TestReadySettings(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	ready := func() (err error) {
		w.nodeA.Run(func() error { err = New("").Ready("eth0"); return nil })
		return err
	}
	if err := ready(); err != nil {
		t.Fatal(err)
	}
	for key, wrong := range map[string]string{
		"net/ipv4/conf/eth0/proxy_arp": "1", "net/ipv4/conf/all/proxy_arp": "1", "net/ipv4/conf/eth0/proxy_arp_pvlan": "1",
		"net/ipv4/conf/eth0/arp_evict_nocarrier": "0", "net/ipv4/conf/all/arp_evict_nocarrier": "0",
		"net/ipv6/conf/eth0/ndisc_evict_nocarrier": "0", "net/ipv6/conf/all/ndisc_evict_nocarrier": "0",
	} {
		right := map[string]string{"0": "1", "1": "0"}[wrong]
		sysctl(t, w.nodeA, key, wrong)
		err := ready()
		if !errors.Is(err, ErrSysctl) || !strings.Contains(err.Error(), key+" is "+wrong) || !strings.Contains(err.Error(), "sysctl -w "+key+"="+right) {
			t.Errorf("%s=%s: %v", key, wrong, err)
		}
		sysctl(t, w.nodeA, key, right)
		if err := ready(); err != nil {
			t.Errorf("%s=%s: %v", key, right, err)
		}
	}
}

// A link on which the node answers counts as the uplink does; other links do not.
func TestReadySettingsOfOtherLinks(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	_, _ = w.secondUplink()
	sysctl(t, w.nodeA, "net/ipv4/conf/eth1/proxy_arp", "1")
	w.nodeA.Run(func() error { return New("").Ready("eth0") })
	p := w.onSecond("p", "10.0.80.5")
	setup(w.nodeA, p)
	w.nodeA.Run(func() error {
		if err := New("").Ready("eth0"); !errors.Is(err, ErrSysctl) || !strings.Contains(err.Error(), "net/ipv4/conf/eth1/proxy_arp") {
			return errors.New("the node does not complain of net/ipv4/conf/eth1/proxy_arp")
		}
		return nil
	})
}

// A kernel without a setting has nothing to complain of.
func TestReadySettingsOfOldKernels(t *testing.T) {
	netnstest.Need(t)
	node := netnstest.New(t)
	netnstest.NewWire(t).Plug(node, "eth0")
	root := t.TempDir()
	for _, link := range []string{"all", "eth0"} {
		dir := filepath.Join(root, "net/ipv4/conf", link)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"proxy_arp", "proxy_arp_pvlan"} {
			if err := os.WriteFile(filepath.Join(dir, key), []byte("0\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	node.Run(func() error { return New(root).Ready("eth0") })
}
