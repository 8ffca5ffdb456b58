// SPDX-License-Identifier: Apache-2.0

package assignment

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/carriers"
)

// segment has hosts, by link and address, with their MACs.
type segment struct {
	fake

	mu    sync.Mutex
	hosts map[string]string
	asked []string
}

func at(link int, addr string) string { return fmt.Sprintf("%d %s", link, addr) }

func (s *segment) set(link int, addr, mac string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hosts[at(link, addr)] = mac
}

func (s *segment) Ask(ctx context.Context, link int, whom map[netip.Addr]string, within time.Duration) map[netip.Addr][]string {
	s.mu.Lock()
	heard := map[netip.Addr][]string{}
	for addr, mac := range whom {
		s.asked = append(s.asked, at(link, addr.String())+" of "+mac)
		if has := s.hosts[at(link, addr.String())]; has != "" && (mac == "" || mac == has) {
			heard[addr] = []string{has}
		}
	}
	s.mu.Unlock()
	select {
	case <-ctx.Done():
	case <-time.After(within):
	}
	return heard
}

// A standby says who is silent, on each link by its own gateway, asks all hosts in doubt, and takes
// its word back.
func TestStandby(t *testing.T) {
	synctest.Test(t, testStandby)
}

func testStandby(t *testing.T) {
	const first, second, gateway = "10.0.70.200", "10.0.80.200", "10.0.70.1"
	network := &segment{hosts: map[string]string{}}
	s := &standby{Carrier: New(Options{Answerer: network, Uplink: func() (string, error) { return "eth0", nil }}), linkFor: func(_ string, vlan int) (int, error) {
		if vlan == 9 {
			return 0, errors.New("no such link")
		}
		return vlan + 1, nil
	}}
	defer s.announcer.Run(ended(t))
	of := func(address, carrier string, vlan int32) v1alpha1.StandbyAddress {
		return v1alpha1.StandbyAddress{Address: address, Carrier: carrier, Network: v1alpha1.Network{VLAN: vlan, Gateway: gateway}}
	}
	all := []v1alpha1.StandbyAddress{of(second, "b", 1), of(first, "a", 0), of("10.0.70.201", "a", 9), of("nonsense", "a", 0)}
	rounds := func(n int, want ...string) {
		t.Helper()
		for range n - 1 {
			if silent := s.listen(t.Context(), all); len(silent) > 0 {
				t.Errorf("too early it says %v", silent)
			}
		}
		network.asked = nil
		var got []string
		for _, silent := range s.listen(t.Context(), all) {
			got = append(got, silent.Address+" of "+silent.Carrier)
		}
		if !slices.Equal(got, want) {
			t.Errorf("it says that these are silent: %v, want %v", got, want)
		}
	}
	asks := func(want string) {
		t.Helper()
		if !slices.Contains(network.asked, want) {
			t.Errorf("it asks for %v, not for %s", network.asked, want)
		}
	}
	for link := 1; link <= 2; link++ {
		network.set(link, gateway, fmt.Sprintf("02:00:00:00:0%d:fe", link))
	}
	rounds(9) // They have not answered.
	network.set(1, first, "02:00:00:00:00:01")
	network.set(2, second, "02:00:00:00:00:02")
	rounds(1)
	asks("1 " + first + " of ")
	rounds(9)
	asks("1 " + first + " of 02:00:00:00:00:01")
	asks("1 " + gateway + " of 02:00:00:00:01:fe")

	network.set(1, first, "")
	network.set(2, second, "")
	network.set(2, gateway, "")
	rounds(4, first+" of a")
	asks("1 " + first + " of ")
	network.set(2, gateway, "02:00:00:00:02:fd") // another router takes over
	rounds(1, first+" of a")
	asks("2 " + gateway + " of ")
	rounds(1, first+" of a")
	rounds(1, first+" of a")
	rounds(1, first+" of a", second+" of b")
	network.set(1, first, "02:00:00:00:00:09")
	rounds(1, second+" of b")
	// Of another carrier it has heard nothing.
	all[0].Carrier = "c"
	rounds(9)
	asks("2 " + second + " of ")
}

// The word is in the status until it is taken back, also one of an agent before, and a write that
// fails is repeated.
func TestStandBySays(t *testing.T) {
	onNode(t, func(t *testing.T, n *node) {
		network := &segment{hosts: map[string]string{at(1, "10.0.70.1"): "02:00:00:00:00:fe"}}
		n.Answerer, n.Uplink = network, func() (string, error) { return "", errors.New("no uplink") }
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		defer group.Wait()
		defer cancel()
		group.Go(func() {
			if err := n.StandBy(ctx); err != nil {
				t.Error(err)
			}
		})
		word := v1alpha1.SilentAddress{Address: "10.0.70.200", Carrier: "a"}
		n.api.Put(&v1alpha1.NodeAssignment{ObjectMeta: metav1.ObjectMeta{Name: "node1"}, Status: v1alpha1.NodeAssignmentStatus{Silent: []v1alpha1.SilentAddress{word}}})
		silent := func() []v1alpha1.SilentAddress {
			<-time.After(2 * carriers.Interval)
			synctest.Wait()
			now, err := n.Assignments.Get(t.Context(), "node1", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return now.Status.Silent
		}
		if got := silent(); len(got) > 0 {
			t.Errorf("it goes on to say %v", got)
		}
		s := &standby{Carrier: n.Carrier}
		s.say(ctx, n.assignment(), []v1alpha1.SilentAddress{word})
		now, err := n.Assignments.Get(t.Context(), "node1", metav1.GetOptions{})
		if err != nil || !slices.Equal(now.Status.Silent, []v1alpha1.SilentAddress{word}) {
			t.Errorf("it says %+v, %v", now.Status, err)
		}
	})
}
