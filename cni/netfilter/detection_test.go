// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"errors"
	"strings"
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/nftables"
)

// The kernel of a node that runs these tests has all that Berth needs, and the question
// leaves nothing.
func TestDetect(t *testing.T) {
	netnstest.Need(t)
	h := netnstest.New(t)
	h.Run(func() error {
		s, err := Detect()
		if err != nil || s.Err() != nil || s.Kernel == "" || len(s.Has)+len(s.Lacks) != len(features()) {
			t.Errorf("Detect() = %+v, %v", s, err)
		}
		t.Logf("%+v", s)
		return leavesNothing(t)
	})
}

// Detect names each feature that the kernel refuses with its option, and leaves nothing, too.
func TestDetectMissing(t *testing.T) {
	netnstest.Need(t)
	h := netnstest.New(t)
	all := features()
	// No kernel translates addresses in the family arp.
	for i, f := range all {
		if f.name == "nat" || f.name == "fib" {
			all[i].table = nftables.Table{Family: nftables.ARP, Chains: []*nftables.Chain{{Name: "probe", Base: nftables.NAT(nftables.Postrouting, 0)}}}
		}
	}
	h.Run(func() error {
		s, err := detect(all)
		if err != nil {
			return err
		}
		err = s.Err()
		if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "lacks nat (CONFIG_NFT_NAT: ") {
			t.Errorf("detect() = %+v, which says %v", s, err)
		}
		if strings.Contains(err.Error(), "fib") || len(s.Without) != 1 || !strings.HasPrefix(s.Without[0], "no host ports, for want of fib (CONFIG_NFT_FIB_INET: ") {
			t.Errorf("detect() = %+v, want it to say that there are no host ports", s)
		}
		return leavesNothing(t)
	})
}

func leavesNothing(t *testing.T) error {
	t.Helper()
	tables, err := nftables.Tables(0)
	if len(tables) > 0 {
		t.Errorf("%d tables are left", len(tables))
	}
	return err
}

// The kernel is asked until it has all, and then no more.
func TestDetector(t *testing.T) {
	answers := []struct {
		support Support
		err     error
		text    string
	}{
		{err: errors.New("boom"), text: "boom"},
		{support: Support{Kernel: "5.4", Needed: []string{"arp tables (CONFIG_NF_TABLES_ARP: x)"}}, text: "kernel 5.4 lacks arp tables"},
		{support: Support{Lacks: []string{"fib"}}},
	}
	asked := 0
	d := Detector{Detect: func() (Support, error) { asked++; return answers[asked-1].support, answers[asked-1].err }}
	for _, a := range answers {
		if err := d.Ready(); (err == nil) != (a.text == "") || err != nil && !strings.Contains(err.Error(), a.text) {
			t.Errorf("Ready() = %v, want %q", err, a.text)
		}
	}
	if err := d.Ready(); err != nil || asked != len(answers) {
		t.Errorf("Ready() = %v after %d questions, want %d", err, asked, len(answers))
	}
}
