// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// ofMachine returns the request of a pod of a virtual machine, which keeps two addresses.
func ofMachine(pod string) Request {
	r := request(pod, pod, v1alpha1.ReleaseRetain)
	r.Parts = make([]Part, 2)
	r.Owner = Owner{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachine", Namespace: "shop", Name: "vm", UID: "vm"}
	r.FixedSet, r.MaxPods = true, 1
	return r
}

func target(pod, source string) Request {
	r := ofMachine(pod)
	r.TwinOf = source
	return r
}

// alone says that a pod is gone, and that others are not.
type alone struct{ gone string }

func (a alone) IsCurrent(context.Context, string, string, string) (bool, error) { return true, nil }
func (a alone) IsNamespace(context.Context, string, string) (bool, error)       { return true, nil }

func (a alone) IsGone(_ context.Context, _, _, uid string) (bool, error) { return uid == a.gone, nil }

// endedPods are known to have ended.
type endedPods []string

func (e endedPods) IsGone(_, _, uid string) bool            { return slices.Contains(e, uid) }
func (endedPods) IsTerminating(string, string, string) bool { return false }
func (endedPods) IsLost(string, string, string) bool        { return false }
func (endedPods) NeverBound(string) bool                    { return false }
func (endedPods) Node(string) *v1.Node                      { return nil }

// bindElsewhere reserves the addresses for the target on node2 and commits.
func bindElsewhere(t *testing.T, i *IPAM, r Request, pods Pods) (*Reservation, error) {
	t.Helper()
	candidates, err := i.Candidates(r)
	if err != nil {
		return nil, err
	}
	reservation, err := i.Reserve(candidates, Node{Name: "node2"}, ReachOf(candidates.Snapshot(), node))
	if err != nil {
		t.Fatal(err)
	}
	return reservation, i.Commit(context.Background(), reservation, pods)
}

// The target of a live migration becomes the twin of all of the source's addresses, in their order
// and on its node, and takes no other address.
func TestTwin(t *testing.T) {
	s := newServer()
	i := open(t, s, testPool("web", "10.0.70.2-10.0.70.9"))
	source := reserve(t, i, ofMachine("source"))
	commit(t, i, source)
	next := ofMachine("target")
	for name, is := range map[string]func(Holder) bool{
		"source": func(pod Holder) bool { return pod == Holder{"shop", "source", "source"} }, "": func(Holder) bool { return false },
	} {
		if got := i.SourceOf(&next, is); got != name {
			t.Errorf("the source is %q, want %q", got, name)
		}
	}
	candidates, err := i.Candidates(target("target", "source"))
	if err != nil {
		t.Fatal(err)
	}
	if got := candidates.AtSource("node1"); got == nil || !got.Unresolvable || candidates.AtSource("node2") != nil {
		t.Errorf("the source's node is refused by %+v, another by %+v", got, candidates.AtSource("node2"))
	}
	if got := candidates.Rejects(ReachOf(candidates.Snapshot(), node)); got != nil {
		t.Errorf("a node of the pool is refused: %+v", got)
	}
	moved, err := bindElsewhere(t, i, target("target", "source"), isCurrent)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(moved.Addrs(), source.Addrs()) || len(s.IPs()) != 2 {
		t.Errorf("the target has %v of %d addresses, and the source %v", moved.Addrs(), len(s.IPs()), source.Addrs())
	}
	for name, ip := range s.IPs() {
		if twin := ip.Spec.Twin; ip.Spec.Pod.Name != "source" || ip.Spec.Node != "node1" || twin == nil || twin.Pod.Name != "target" || twin.Pod.UID != "target" || twin.Node != "node2" || !ip.Spec.AwaitsTakeOver() {
			t.Errorf("%s: %+v", name, ip.Spec)
		}
	}
	if _, err := bindElsewhere(t, i, target("another", "source"), isCurrent); err == nil || !strings.Contains(err.Error(), `already moves to or from pod "target"`) {
		t.Errorf("a second target: %v", err)
	}

	// It is tried again, by this scheduler or another: what was written before cannot be taken back.
	again, err := bindElsewhere(t, i, target("target", "source"), isCurrent)
	if err != nil {
		t.Fatal(err)
	}
	if err := i.Abandon(context.Background(), moved); err != nil {
		t.Fatal(err)
	}
	if ip := s.IP("10.0.70.2"); ip.Spec.Twin == nil {
		t.Error("an earlier attempt took the twin back")
	}
	var told []Change
	i.OnChange(func(change Change) { told = append(told, change) })
	if err := i.Abandon(context.Background(), again); err != nil {
		t.Fatal(err)
	}
	for name, ip := range s.IPs() {
		if ip.Spec.Twin != nil || ip.Spec.Pod.Name != "source" {
			t.Errorf("%s after the binding failed: %+v", name, ip.Spec)
		}
	}
	other := target("another", "source")
	if !slices.ContainsFunc(told, func(change Change) bool { return i.Helps(change)(&other, LackOwner) }) {
		t.Errorf("the next target is not told: %+v", told)
	}
}

// The write decides: another target, or the next holder, may have been faster.
func TestTwinConflicts(t *testing.T) {
	for name, faster := range map[string]func(ip *v1alpha1.FloatingIP){
		"another target": func(ip *v1alpha1.FloatingIP) {
			ip.Spec.Twin = &v1alpha1.Twin{Pod: v1alpha1.PodReference{Name: "other", UID: "other"}, Node: "node2"}
		},
		"another holder": func(ip *v1alpha1.FloatingIP) { ip.Spec.Pod = &v1alpha1.PodReference{Name: "other", UID: "other"} },
	} {
		s := newServer()
		i := open(t, s, testPool("web", "10.0.70.2-10.0.70.9"))
		commit(t, i, reserve(t, i, ofMachine("source")))
		candidates, err := i.Candidates(target("target", "source"))
		if err != nil {
			t.Fatal(err)
		}
		reservation, err := i.Reserve(candidates, Node{Name: "node2"}, ReachOf(candidates.Snapshot(), node))
		if err != nil {
			t.Fatal(err)
		}
		s.Late()
		ip := s.IP("10.0.70.2")
		faster(ip)
		s.Put(ip)
		if err := i.Commit(context.Background(), reservation, isCurrent); !errors.Is(err, ErrConflict) {
			t.Errorf("%s: %v, want ErrConflict", name, err)
		}
		if twin := s.IP("10.0.70.2").Spec.Twin; twin != nil && twin.Pod.Name == "target" {
			t.Errorf("%s: the target is the twin", name)
		}
	}
}

// While the twin lives, no other pod takes the address of a source that is gone.
func TestTwinKeepsTheAddress(t *testing.T) {
	s := newServer()
	pool := testPool("web", "10.0.70.2-10.0.70.3")
	i, behind := open(t, s, pool), open(t, s, pool)
	commit(t, i, reserve(t, i, ofMachine("source")))
	next := ofMachine("next")
	behind.KnowPods(knownPods{gone: "source"})
	r := reserve(t, behind, next)
	if _, err := bindElsewhere(t, i, target("target", "source"), isCurrent); err != nil {
		t.Fatal(err)
	}
	// A scheduler that did not know of the twin asks the API server about it.
	if err := behind.Commit(context.Background(), r, alone{"source"}); !errors.Is(err, ErrConflict) {
		t.Errorf("Commit: %v, want ErrConflict", err)
	}
	behind.Unreserve(r)
	if rejected(t, behind, next) == "" {
		t.Error("the next pod may have the address of the twin")
	}
	behind.KnowPods(endedPods{"source", "target"})
	if reason := rejected(t, behind, next); reason != "" {
		t.Errorf("the next pod may not have the address after both: %s", reason)
	}
	if ip := s.IP("10.0.70.2"); ip.Spec.Pod.Name != "source" || ip.Spec.Twin == nil {
		t.Errorf("the address went to %+v", ip.Spec)
	}
}
