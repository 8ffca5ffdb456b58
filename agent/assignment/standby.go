// SPDX-License-Identifier: Apache-2.0

package assignment

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/cni/nodeaddress"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/carriers"
)

// sayWithin limits a try to say who is silent: the next round tries again.
const sayWithin = 5 * time.Second

// standby is what the node hears of the carriers of addresses, and of the gateways of their links.
type standby struct {
	*Carrier

	linkFor  func(uplink string, vlan int) (int, error)
	carriers map[v1alpha1.SilentAddress]*carriers.Watch
	gateways map[host]*carriers.Watch
}

// host is an address on a link.
type host struct {
	link int
	addr netip.Addr
}

// watched is an address of which the node is standby, at a link.
type watched struct {
	v1alpha1.SilentAddress

	addr, gateway netip.Addr
}

// StandBy asks for the addresses of which the node is standby, and says in the status of the
// NodeAssignment for which of them nobody answers, until the context ends. Run must run, too.
func (c *Carrier) StandBy(ctx context.Context) error {
	s := &standby{Carrier: c, linkFor: nodeaddress.LinkFor}
	ticker := time.NewTicker(carriers.Interval)
	defer ticker.Stop()
	for {
		round := ticker.C
		seen, known := c.Assignment()
		if known && (seen == nil || len(seen.Spec.Standby)+len(seen.Status.Silent) == 0) {
			round = nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.stands:
			continue
		case <-round:
		}
		if !known {
			continue
		}
		if silent := s.listen(ctx, seen.Spec.Standby); ctx.Err() == nil && !slices.Equal(silent, seen.Status.Silent) {
			s.say(ctx, seen, silent)
		}
	}
}

// say writes which carriers are silent.
func (s *standby) say(ctx context.Context, seen *v1alpha1.NodeAssignment, silent []v1alpha1.SilentAddress) {
	ctx, cancel := context.WithTimeout(ctx, sayWithin)
	defer cancel()
	klog.FromContext(ctx).Info("Says for which addresses their carriers do not answer: this node is the standby", "silent", silent)
	if err := s.patch(ctx, seen, map[string]any{"silent": append([]v1alpha1.SilentAddress{}, silent...)}); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Cannot say which carriers are silent, will try again")
	}
}

// listen asks once for each address, and for the gateways of their links. It returns the carriers
// that are silent, in the order of their addresses.
func (s *standby) listen(ctx context.Context, all []v1alpha1.StandbyAddress) (silent []v1alpha1.SilentAddress) {
	links := s.join(ctx, all)
	heard := s.ask(ctx, links)
	macOf := func(at host) string {
		if macs := heard[at.link][at.addr]; len(macs) > 0 {
			return slices.Min(macs)
		}
		return ""
	}
	for link, of := range links {
		for _, w := range of {
			if s.carriers[w.SilentAddress].Note(macOf(host{link, w.addr}), macOf(host{link, w.gateway}) != "") {
				silent = append(silent, w.SilentAddress)
			}
		}
	}
	for at, watch := range s.gateways {
		watch.Note(macOf(at), true)
	}
	slices.SortFunc(silent, func(x, y v1alpha1.SilentAddress) int { return cmp.Compare(x.Address, y.Address) })
	return silent
}

// join has the node hear the networks of the addresses, and returns these by their links. An
// address whose network it cannot hear is not among them.
func (s *standby) join(ctx context.Context, all []v1alpha1.StandbyAddress) map[int][]watched {
	links, ofVLAN := map[int][]watched{}, map[int32]int{}
	uplink, none := s.Uplink()
	for _, a := range all {
		w, err := watched{SilentAddress: v1alpha1.SilentAddress{Address: a.Address, Carrier: a.Carrier}}, none
		link, known := ofVLAN[a.Network.VLAN]
		if !known && err == nil {
			link, err = s.linkFor(uplink, int(a.Network.VLAN))
		}
		var wrong [2]error
		w.addr, wrong[0] = netip.ParseAddr(a.Address)
		w.gateway, wrong[1] = netip.ParseAddr(a.Network.Gateway)
		if err := errors.Join(err, wrong[0], wrong[1]); err != nil {
			klog.FromContext(ctx).V(2).Info("Cannot ask whether a carrier answers", "address", a.Address, "carrier", a.Carrier, "err", err)
			continue
		}
		ofVLAN[a.Network.VLAN] = link
		s.Answerer.Join(link, uplink, w.gateway)
		links[link] = append(links[link], w)
	}
	return links
}

// ask asks on all links at once. It forgets what it heard of other addresses.
func (s *standby) ask(ctx context.Context, links map[int][]watched) map[int]map[netip.Addr][]string {
	before := *s
	s.carriers, s.gateways = map[v1alpha1.SilentAddress]*carriers.Watch{}, map[host]*carriers.Watch{}
	heard := map[int]map[netip.Addr][]string{}
	var mu sync.Mutex
	var group sync.WaitGroup
	for link, of := range links {
		whom := map[netip.Addr]string{}
		for _, w := range of {
			gateway := host{link, w.gateway}
			s.carriers[w.SilentAddress] = cmp.Or(before.carriers[w.SilentAddress], &carriers.Watch{})
			s.gateways[gateway] = cmp.Or(s.gateways[gateway], before.gateways[gateway], &carriers.Watch{})
			whom[w.addr], whom[w.gateway] = s.carriers[w.SilentAddress].Whom(), s.gateways[gateway].Whom()
		}
		group.Go(func() {
			macs := s.Answerer.Ask(ctx, link, whom, carriers.AnswersWithin)
			mu.Lock()
			defer mu.Unlock()
			heard[link] = macs
		})
	}
	group.Wait()
	return heard
}
