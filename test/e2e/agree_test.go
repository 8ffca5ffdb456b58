// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/veth/wire"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/iprange"
	"github.com/berth-dev/berth/test/lab"
)

// agree waits until the API, the agents' files and the kernels of all nodes
// that are up say the same of all addresses but those in pools of other tests.
func (s *stage) agree() {
	s.t.Helper()
	s.eventually("API, agents and kernels agree", func() error {
		others, err := s.poolsOfOthers()
		if err != nil {
			return err
		}
		held, err := s.holders(s.ctx, others)
		if err != nil {
			return err
		}
		var errs []error
		for _, node := range s.Cluster.Nodes() {
			if _, err := node.PID(); errors.Is(err, lab.ErrHostDown) {
				continue
			}
			if err := nodeAgrees(s.ctx, s.t, node, held[node.Name()], others); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", node.Name(), err))
			}
		}
		return errors.Join(errs...)
	})
}

// addresses says whether an address is one of some.
type addresses func(address string) bool

// poolsOfOthers are the addresses in the pools of tests that run beside this one.
func (s *stage) poolsOfOthers() (addresses, error) {
	list, err := s.berth.IPPools.List(s.ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var ranges []iprange.Range
	for i := range list.Items {
		if slices.Contains(s.pools, list.Items[i].Name) {
			continue
		}
		for _, text := range list.Items[i].Spec.Ranges {
			r, err := iprange.Parse(text)
			if err != nil {
				return nil, err
			}
			ranges = append(ranges, r)
		}
	}
	set := iprange.SetOf(ranges...)
	return func(address string) bool {
		addr, err := netip.ParseAddr(address)
		return err == nil && set.Contains(addr)
	}, nil
}

// holders checks the API's objects against each other and returns the addresses
// that pods hold on each node, but those of others.
func (s *stage) holders(ctx context.Context, others addresses) (map[string][]string, error) {
	list, err := s.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	ips, err := s.berth.FloatingIPs.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	pods := map[types.UID]*v1.Pod{}
	users := map[string]string{}
	for i := range list.Items {
		pod := &list.Items[i]
		pods[pod.UID] = pod
		if pod.Spec.HostNetwork || finished(pod) {
			continue
		}
		for _, ip := range pod.Status.PodIPs {
			if other, taken := users[ip.IP]; taken {
				// No waiting makes this right.
				s.t.Fatalf("pods %s and %s/%s both have %s", other, pod.Namespace, pod.Name, ip.IP)
			}
			users[ip.IP] = pod.Namespace + "/" + pod.Name
		}
	}
	held, ofPod := map[string][]string{}, map[types.UID][]string{}
	for i := range ips.Items {
		ip := &ips.Items[i]
		if ip.Spec.Pod == nil || others(ip.Spec.Address) {
			continue
		}
		if err := holderLives(ip, pods[ip.Spec.Pod.UID]); err != nil {
			return nil, fmt.Errorf("FloatingIP %s: %w", ip.Name, err)
		}
		held[ip.Spec.Node] = append(held[ip.Spec.Node], ip.Spec.Address)
		ofPod[ip.Spec.Pod.UID] = append(ofPod[ip.Spec.Pod.UID], ip.Spec.Address)
	}
	for uid, addresses := range ofPod {
		if err := showsItsOwn(pods[uid], addresses); err != nil {
			return nil, err
		}
	}
	return held, nil
}

// showsItsOwn checks the addresses in a pod's status, of which there is one of
// each family at most, against all that it holds.
func showsItsOwn(pod *v1.Pod, holds []string) error {
	families := map[bool]bool{}
	for _, ip := range pod.Status.PodIPs {
		if !slices.Contains(holds, ip.IP) {
			return fmt.Errorf("pod %s has %s and holds %v", pod.Name, ip.IP, holds)
		}
		families[strings.Contains(ip.IP, ":")] = true
	}
	for _, address := range holds {
		if !families[strings.Contains(address, ":")] {
			return fmt.Errorf("pod %s holds %s and shows %v only", pod.Name, address, pod.Status.PodIPs)
		}
	}
	return nil
}

func finished(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}

func holderLives(ip *v1alpha1.FloatingIP, pod *v1.Pod) error {
	switch {
	case pod == nil:
		return fmt.Errorf("its pod %s with UID %s does not exist", ip.Spec.Pod.Name, ip.Spec.Pod.UID)
	case finished(pod):
		return fmt.Errorf("its pod %s has finished", pod.Name)
	case pod.Spec.NodeName != ip.Spec.Node:
		return fmt.Errorf("its pod %s is on node %q, not on %q", pod.Name, pod.Spec.NodeName, ip.Spec.Node)
	}
	return nil
}

// nodeAgrees compares what a node carries and has written down with what the
// API says it should carry, but for the addresses of others.
func nodeAgrees(ctx context.Context, t *testing.T, node *lab.Node, want []string, others addresses) error {
	have, err := kernelOf(node)
	if err != nil {
		return err
	}
	for _, list := range []*[]string{&have.Answered, &have.Routed, &have.Out} {
		*list = slices.DeleteFunc(*list, others)
	}
	records, err := recordsOf(ctx, t, node)
	if err != nil {
		return err
	}
	var recorded []string
	links := map[string]bool{}
	for _, r := range records {
		ours := true
		for _, i := range r.Attachments {
			for _, a := range i.Addresses {
				link := wire.HostLink(r.ContainerID, i.IfName)
				if others(a.Address.String()) {
					ours = false
					delete(have.Links, link)
					continue
				}
				recorded = append(recorded, a.Address.String())
				links[link] = true
			}
		}
		if ours && r.Phase != state.Added {
			return fmt.Errorf("the agent has a record of pod %s that is %s", r.Pod, r.Phase)
		}
	}
	slices.Sort(want)
	slices.Sort(recorded)
	wanted := kernel{Answered: want, Routed: want, Out: want, Links: links}
	if diff := cmp.Diff(wanted, have, cmpopts.EquateEmpty()); diff != "" {
		return fmt.Errorf("the kernel carries other addresses than the API says (-API +kernel):\n%s", diff)
	}
	if diff := cmp.Diff(want, recorded, cmpopts.EquateEmpty()); diff != "" {
		return fmt.Errorf("the agent has records of other addresses than the API says (-API +agent):\n%s", diff)
	}
	return nil
}
