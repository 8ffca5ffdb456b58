// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/conflict"
)

// A node whose link lost its carrier is silent when the carrier is back, and lacks the pieces by which it answered. The
// API says which addresses are still its pods'; Verify asks it at once. While the API cannot be asked, the node asks the
// network: it opens what nobody else answers for.
//
// Two nodes that both lost the API, both had their links cut and both have a record of the address hear nobody and both
// open it. The API settles that when one of them reaches it.

const (
	// apiFirst is how long the API alone may answer after a link is back: it takes milliseconds, and questions cost
	// every host of the network.
	apiFirst = time.Second
	// silence is how long nobody may have answered for an address that is opened. Other nodes of the same switch may get
	// their links back later than this one.
	silence = 3 * time.Second
	// silenceAlone is silence where nobody answered any question: a port that a switch blocks, and a wrong VLAN, are
	// silent, too. Spanning tree opens a port after 30 s, or 50 s.
	silenceAlone = time.Minute
)

// segment is the hosts that hear the questions of a family on a link.
type segment struct {
	link int
	is4  bool
}

// unheard has since when nobody on a segment has answered any question. Methods are safe in parallel.
type unheard struct {
	mu    sync.Mutex
	since map[segment]time.Time
}

// note takes the segments that were asked since a time, with whether somebody answered, and returns those whose silence
// counts. It forgets all others.
func (u *unheard) note(began time.Time, asked map[segment]bool) (counts map[segment]bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	before := u.since
	u.since, counts = map[segment]time.Time{}, map[segment]bool{}
	for s, answered := range asked {
		if answered {
			counts[s] = true
			continue
		}
		u.since[s] = began
		if first, known := before[s]; known {
			u.since[s] = first
		}
		counts[s] = time.Since(u.since[s]) >= silenceAlone
	}
	return counts
}

func (u *unheard) forget() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.since = nil
}

// Uplinks lists the links of this node to networks of floating IPs. It does not block for long.
func (a *Agent) Uplinks() ([]string, error) {
	floating, err := a.Networks.Floating()
	names := map[string]bool{}
	if err == nil {
		names[floating.Uplink] = true
	}
	for _, record := range a.Store.List() {
		for i := range record.Attachments {
			if len(record.Attachments[i].Addresses) > 0 {
				names[record.Attachments[i].Uplink] = true
			}
		}
	}
	delete(names, "")
	if len(names) == 0 {
		return nil, err
	}
	return slices.Sorted(maps.Keys(names)), nil
}

// ReopenSoon has the network asked for the addresses for which this node does not answer though they are its pods', unless
// the API says soon whose they are. It returns at once. Its caller calls it when a link is back.
func (a *Agent) ReopenSoon() {
	a.unheard.forget()
	a.reconciler.ReopenSoon()
}

// reopen does the work of ReopenSoon. It returns an error that names the addresses that stay silent.
func (a *Agent) reopen(ctx context.Context) error {
	if a.Ask == nil {
		return nil
	}
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(apiFirst):
	}
	var waiting []*state.Container
	if a.suspects.waiting() {
		waiting = a.incomplete(ctx)
	}
	if len(waiting) == 0 {
		// The API has answered, or nothing is missing.
		a.unheard.forget()
		return nil
	}
	q := questions{of: map[state.Key][]conflict.Target{}, on: map[segment][]netip.Addr{}}
	defer func() { q.release() }()
	var left []error
	for _, record := range waiting {
		if err := a.prepare(&q, record); err != nil {
			left = append(left, fmt.Errorf("%s of pod %s: %w", strings.Join(addressList(record), ", "), record.Pod, err))
		}
	}
	heard, silent := a.listen(ctx, q.on)
	if ctx.Err() != nil {
		return nil
	}
	for _, record := range waiting {
		targets, asked := q.of[record.Key()]
		if !asked {
			continue
		}
		if err := answered(targets, heard, silent); err != nil {
			left = append(left, fmt.Errorf("pod %s: %w", record.Pod, err))
			continue
		}
		klog.FromContext(ctx).Info("Nobody else answers for the addresses of a pod, and the API server has not said whose they are: the node answers for them", "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name),
			"containerID", record.ContainerID, "ips", addressList(record))
		if err := a.setupAgain(ctx, record); err != nil {
			a.reconciler.CheckSoon(record.Key())
			left = append(left, fmt.Errorf("pod %s: %w", record.Pod, err))
		}
	}
	return errors.Join(left...)
}

// questions are the addresses to ask for.
type questions struct {
	// of has the addresses of records that the network can be asked for, on has all by segment.
	of map[state.Key][]conflict.Target
	on map[segment][]netip.Addr
	// releases end the keeping of links that drivers made.
	releases []func()
}

func (q *questions) release() {
	for _, r := range q.releases {
		r()
	}
}

// prepare adds the addresses of a record, with their gateways: an answer of one shows that the network hears questions of
// this form.
func (a *Agent) prepare(q *questions, record *state.Container) error {
	targets, release, err := a.toProbe(record)
	if release != nil {
		q.releases = append(q.releases, release)
	}
	if err != nil {
		return err
	}
	if len(targets) < len(record.Addresses()) {
		return errors.New("the network cannot be asked for them")
	}
	gateways := map[netip.Addr]netip.Addr{}
	for _, addr := range record.Addresses() {
		gateways[addr.Address] = addr.Gateway
	}
	q.of[record.Key()] = targets
	for _, t := range targets {
		s := segment{t.Link, t.Address.Is4()}
		q.on[s] = append(q.on[s], t.Address)
		if gateway := gateways[t.Address]; gateway.IsValid() {
			q.on[s] = append(q.on[s], gateway)
		}
	}
	return nil
}

// answered returns an error for each address for which a host answers, or whose silence does not count.
func answered(targets []conflict.Target, heard map[segment]map[netip.Addr]string, silent map[segment]bool) error {
	var errs []error
	for _, t := range targets {
		s := segment{t.Link, t.Address.Is4()}
		switch {
		case heard[s][t.Address] != "":
			errs = append(errs, fmt.Errorf("%s: the host with MAC %s answers for it", t.Address, heard[s][t.Address]))
		case !silent[s]:
			errs = append(errs, fmt.Errorf("%s: nobody in its network answers anything yet", t.Address))
		}
	}
	return errors.Join(errs...)
}

// incomplete lists the complete records whose interfaces lack something by which the node answers for their addresses.
func (a *Agent) incomplete(ctx context.Context) []*state.Container {
	checks := a.surveyChecks()
	var all []*state.Container
	for _, record := range a.Store.List() {
		if ctx.Err() != nil {
			return nil
		}
		if record.Phase == state.Added && len(record.Addresses()) > 0 && !a.agrees(record, checks) && a.eachInterface(record, nettype.Driver.CheckNode) != nil {
			all = append(all, record)
		}
	}
	return all
}

// listen asks again and again, as long as the silence must last. It returns the MAC of a host that answered for each
// address, and the segments on which silence counts.
func (a *Agent) listen(ctx context.Context, questions map[segment][]netip.Addr) (heard map[segment]map[netip.Addr]string, silent map[segment]bool) {
	began := time.Now()
	heard = map[segment]map[netip.Addr]string{}
	asked := map[segment]bool{}
	var mu sync.Mutex
	var group sync.WaitGroup
	for s, addrs := range questions {
		slices.SortFunc(addrs, netip.Addr.Compare)
		addrs = slices.Compact(addrs)
		group.Go(func() {
			macs, answered := map[netip.Addr]string{}, false
			for time.Since(began) < silence {
				answers, err := a.Ask(ctx, s.link, addrs)
				if err != nil {
					if ctx.Err() == nil {
						klog.FromContext(ctx).V(2).Info("Cannot ask a network for addresses of pods", "link", s.link, "err", err)
					}
					return
				}
				for _, one := range answers {
					if len(one.MACs) > 0 {
						macs[one.Address], answered = one.MACs[0].String(), true
					}
				}
			}
			mu.Lock()
			defer mu.Unlock()
			heard[s], asked[s] = macs, answered
		})
	}
	group.Wait()
	return heard, a.unheard.note(began, asked)
}
