// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/assigner"
	"github.com/berth-dev/berth/ipam/ipamtest"
	"github.com/berth-dev/berth/ipam/iprange"
	"github.com/berth-dev/berth/ipam/pools"
)

// attachments are the calls of an external assigner.
type attachments []assigner.Assignment

func (a *attachments) Attach(_ context.Context, assignment assigner.Assignment) error {
	*a = append(*a, assignment)
	return nil
}

// The external assigner attaches the addresses of pools that need it, when a pod gets
// them.
func TestAttach(t *testing.T) {
	pool := testPool("cloud", "10.0.70.2-10.0.70.9")
	pool.Spec.ExternalAssigner = true
	claim := claimOf(9)
	s := newServer()
	i := openWith(t, s, &poolWatch{pools: []*v1alpha1.IPPool{pool, testPool("web", "10.0.70.20")}, claims: []*v1alpha1.IPClaim{claim}})

	without := reserve(t, i, request("web-0", "a", "", "cloud"))
	if err := i.Commit(t.Context(), without, isCurrent); err == nil || !strings.Contains(err.Error(), `pool "cloud" needs the external assigner, but the scheduler has none configured`) {
		t.Errorf("Commit without an assigner: %v", err)
	}
	var attached attachments
	i.assigner = &attached
	ahead, err := RequestOf(claim, v1alpha1.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	if made, err := i.Preallocate(t.Context(), ahead, 1, asIs); made != 1 || err != nil {
		t.Errorf("Preallocate = %d, %v", made, err)
	}
	commit(t, i, reserve(t, i, request("web-1", "b", "", "web")))
	if len(attached) > 0 {
		t.Errorf("attached without need: %+v", attached)
	}
	r := reserve(t, i, request("web-2", "c", "", "cloud"))
	commit(t, i, r)
	record, _ := i.book.Stored(r.Addrs()[0])
	want := attachments{{
		Address: r.Addrs()[0], Pool: "cloud", Subnet: netip.MustParsePrefix("10.0.70.0/24"), Gateway: netip.MustParseAddr("10.0.70.1"),
		Node: assigner.Node{Name: "node1"}, Pod: assigner.Pod{Namespace: "shop", Name: "web-2", UID: "c"}, Revision: record.Version,
	}}
	if diff := cmp.Diff(want, attached, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("attached (-want +got):\n%s", diff)
	}
	if err := i.Abandon(t.Context(), r); err != nil {
		t.Errorf("Abandon of an attached address: %v", err)
	}
	// The controller has it detached first.
	left := s.IP(r.Names())
	if left == nil || left.Spec.Pod != nil || left.Spec.LastPod != "" || left.Spec.Node == "" || !left.Spec.ExternallyAssigned {
		t.Errorf("Abandon of an attached address leaves %+v, want a FloatingIP without a pod, and its node", left)
	}
}

// An address that moves to another pool, or to none, between Reserve and Commit is not written: a
// pod may wait for long in between, and nobody has looked whether the other pool serves it.
func TestCommitAfterAMoveToAnotherPool(t *testing.T) {
	for name, kept := range map[string]bool{"free": false, "kept": true} {
		t.Run(name, func(t *testing.T) {
			s := newServer()
			i := open(t, s, testPool("web", "10.0.70.2-10.0.70.9"))
			moving := request("web-0", "b", v1alpha1.ReleaseRetain)
			moving.Parts[0].Ranges = iprange.ListOf(iprange.Single(netip.MustParseAddr("10.0.70.2")))
			if kept {
				commit(t, i, reserve(t, i, request("web-0", "a", v1alpha1.ReleaseRetain)))
				s.Retain("10.0.70.2")
			}
			for what, after := range map[string][]*v1alpha1.IPPool{
				"another pool": {testPool("db", "10.0.70.2"), testPool("web", "10.0.70.3-10.0.70.9")},
				"no pool":      {testPool("web", "10.0.70.3-10.0.70.9")},
			} {
				i.setPools(pools.Compile([]*v1alpha1.IPPool{testPool("web", "10.0.70.2-10.0.70.9")}))
				r := reserve(t, i, moving)
				i.setPools(pools.Compile(after))
				s.Writes()
				if err := i.Commit(t.Context(), r, isCurrent); !errors.Is(err, ErrConflict) {
					t.Errorf("Commit of an address that is in %s now: %v, want a conflict", what, err)
				}
				wantWrites(t, s)
				i.Unreserve(r)
			}
			i.setPools(pools.Compile([]*v1alpha1.IPPool{testPool("db", "10.0.70.2-10.0.70.9")}))
			commit(t, i, reserve(t, i, moving))
			if got := s.IP("10.0.70.2").Spec.Pool; got != "db" {
				t.Errorf("the next attempt records pool %q, want db", got)
			}
		})
	}
}

// Abandon may be called again after an error.
func TestAbandonFails(t *testing.T) {
	s := newServer()
	i := open(t, s, testPool("web", "10.0.70.2-10.0.70.9"))
	r := reserve(t, i, request("web-0", "a", v1alpha1.ReleaseRetain))
	commit(t, i, r)
	refused := errors.New("refused")
	s.Fail(ipamtest.Fault{Verb: "delete", Err: refused})
	if err := i.Abandon(t.Context(), r); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("Abandon = %v, want the error of the API server", err)
	}
	if err := i.Abandon(t.Context(), r); err != nil || len(s.IPs()) != 0 {
		t.Errorf("Abandon again = %v, and %d FloatingIPs are left", err, len(s.IPs()))
	}
	if err := i.Abandon(t.Context(), r); err != nil {
		t.Errorf("Abandon of what is gone = %v", err)
	}
}

// Waiting pods learn that their owner's pod has ended.
func TestPodEnded(t *testing.T) {
	s := newServer()
	i := open(t, s, testPool("web", "10.0.70.2-10.0.70.9"))
	of := func(pod string, policy v1alpha1.ReleasePolicy, parts int) Request {
		r := request(pod, pod, policy)
		r.Owner = Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "web", UID: "d"}
		r.Parts = make([]Part, parts)
		return r
	}
	old := reserve(t, i, of("old", v1alpha1.ReleaseRetain, 2))
	commit(t, i, old)
	commit(t, i, reserve(t, i, of("unkept", v1alpha1.ReleasePodDeleted, 1)))
	for _, test := range []struct {
		name, uid, gone string
		want            []Change
	}{
		{"another pod", "new", "", nil},
		{"a pod whose address is not kept", "unkept", "", nil},
		{"the pod, which may be alive", "old", "", []Change{{Owner: &old.request.Owner, More: 1}}},
		{"the pod, which is gone", "old", "old", []Change{{Owner: &old.request.Owner, More: 1, Addr: old.Addrs()[0]}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.gone != "" {
				i.KnowPods(knownPods{gone: test.gone})
			}
			var told []Change
			i.mu.Lock()
			i.listeners = []func(Change){func(change Change) { told = append(told, change) }}
			i.mu.Unlock()
			i.PodEnded("shop", test.uid)
			if diff := cmp.Diff(test.want, told, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("told (-want +got):\n%s", diff)
			}
		})
	}
}

// The next holder of an address is newer than the one before, whatever the clocks of schedulers
// say: routers that prefer the newer one then never go back.
func TestSince(t *testing.T) {
	for name, kept := range map[string]bool{"the same pod": false, "the next pod": true} {
		t.Run(name, func(t *testing.T) {
			s := newServer()
			i := open(t, s, testPool("web", "10.0.70.2-10.0.70.9"))
			commit(t, i, reserve(t, i, request("web-0", "a", v1alpha1.ReleaseRetain)))
			first := s.IP("10.0.70.2").Spec.Since
			if ago := time.Since(first.Time); ago < 0 || ago > time.Minute {
				t.Errorf("a new address is held since %s", first)
			}
			if kept {
				s.Retain("10.0.70.2")
			}
			// A scheduler whose clock is an hour ahead wrote it.
			ahead := metav1.NewTime(first.Add(time.Hour))
			spec := s.IP("10.0.70.2").Spec
			spec.Since = &ahead
			written, err := i.store.Update(t.Context(), s.IP("10.0.70.2"), spec)
			if err != nil {
				t.Fatal(err)
			}
			record, err := recordOf(written)
			if err != nil {
				t.Fatal(err)
			}
			i.book.Observe(record)
			uid := "a"
			if kept {
				uid = "b"
			}
			commit(t, i, reserve(t, i, request("web-0", uid, v1alpha1.ReleaseRetain)))
			if got, want := s.IP("10.0.70.2").Spec.Since.Time, ahead.Add(time.Second); !got.Equal(want) {
				t.Errorf("held since %s, want %s, a second later than before", got, want)
			}
		})
	}
}

// An address of a pool with mode Routed is recorded with it, for the node that wires it.
func TestRecordedMode(t *testing.T) {
	routed := testPool("racks", "10.98.0.0/30")
	routed.Spec.Subnet, routed.Spec.Gateway, routed.Spec.Mode = "10.98.0.0/24", "", v1alpha1.NetworkRouted
	s := newServer()
	i := open(t, s, routed)
	r := reserve(t, i, request("web-0", "a", v1alpha1.ReleaseRetain, "racks"))
	commit(t, i, r)
	want := &v1alpha1.Network{Subnet: "10.98.0.0/24", Mode: v1alpha1.NetworkRouted}
	if diff := cmp.Diff(want, s.IP(r.Names()).Spec.Network); diff != "" {
		t.Errorf("the network (-want +got):\n%s", diff)
	}
}

// silentPods answers yes to all questions but one.
type silentPods struct {
	question string
	err      error
}

func (p silentPods) answer(question string) (bool, error) {
	if question == p.question {
		return false, p.err
	}
	return true, nil
}

func (p silentPods) IsCurrent(context.Context, string, string, string) (bool, error) {
	return p.answer("current")
}

func (p silentPods) IsGone(context.Context, string, string, string) (bool, error) {
	return p.answer("gone")
}

func (p silentPods) IsNamespace(context.Context, string, string) (bool, error) {
	return p.answer("namespace")
}

// A question that the API server does not answer is no leave to take an address: Commit writes
// nothing, says which question it was, and is no conflict, so that the pod is tried again as it is.
func TestCommitWithoutAnswers(t *testing.T) {
	silent := errors.New("the API server is silent")
	shared := Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "web", UID: "d"}
	for name, test := range map[string]struct {
		// before is the request of the pod that had the address, and next the one of its successor.
		before, next func(*Request)
		known        KnownPods
		question     string
		want         string
	}{
		"the pod may be bound by another scheduler": {
			before: func(r *Request) { r.Owner = shared }, next: func(r *Request) { r.Owner = shared },
			known: knownPods{gone: "a"}, question: "current", want: "check whether pod shop/b may still take 10.0.70.2: ",
		},
		"the holder may be alive": {
			before: func(r *Request) { r.Owner = shared }, next: func(r *Request) { r.Owner = shared },
			known: knownPods{gone: "a"}, question: "gone", want: "check whether pod shop/a, which had 10.0.70.2, is gone: ",
		},
		"the namespace may be another one": {
			before: func(r *Request) { r.Policy = v1alpha1.ReleaseNever },
			next: func(r *Request) {
				r.Policy, r.Owner.UID, r.Owner.PodName = v1alpha1.ReleaseNever, "again", "a"
				r.NamespaceMeta = &metav1.ObjectMeta{Name: "shop", UID: "shop"}
			},
			question: "namespace", want: "check whether namespace shop is still the one in which 10.0.70.2 was kept: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer()
			i := open(t, s, testPool("web", "10.0.70.2-10.0.70.9"))
			before, next := request("a", "a", v1alpha1.ReleaseRetain), request("b", "b", v1alpha1.ReleaseRetain)
			test.before(&before)
			test.next(&next)
			before.NamespaceMeta = next.NamespaceMeta
			commit(t, i, reserve(t, i, before))
			if test.known != nil {
				i.KnowPods(test.known)
			} else {
				s.Retain("10.0.70.2")
			}
			r := reserve(t, i, next)
			s.Writes()
			err := i.Commit(t.Context(), r, silentPods{test.question, silent})
			if !errors.Is(err, silent) || errors.Is(err, ErrConflict) || !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("Commit() = %v, want %q and the error, and no conflict", err, test.want)
			}
			wantWrites(t, s)
			if err := i.Commit(t.Context(), r, silentPods{}); err != nil {
				t.Errorf("with all answers: Commit() = %v", err)
			}
		})
	}
}

// The end of an owner's pod has the controller write the address, too. Its write between Reserve
// and Commit costs the next pod no attempt, as long as the address is still its owner's.
func TestCommitBesideTheController(t *testing.T) {
	of := func(pod string) Request {
		r := request(pod, pod, v1alpha1.ReleaseRetain)
		r.Owner = Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "web", UID: "d"}
		return r
	}
	change := func(s *server, mutate func(spec *v1alpha1.FloatingIPSpec)) {
		ip := s.IP("10.0.70.2")
		mutate(&ip.Spec)
		s.Put(ip)
	}
	keep := func(s *server) {
		change(s, func(spec *v1alpha1.FloatingIPSpec) { spec.Pod, spec.Node, spec.LastPod = nil, "", "old" })
	}
	for name, test := range map[string]struct {
		// first are the writes of others, each before an attempt of this scheduler's.
		first []func(s *server)
		want  error
	}{
		"kept for the owner": {first: []func(s *server){keep}},
		"kept for the owner, then looked at": {first: []func(s *server){
			keep,
			func(s *server) {
				change(s, func(spec *v1alpha1.FloatingIPSpec) { spec.LastNode = nil; spec.KeepOnScaleDown = true })
			},
		}},
		"another pod of the owner's": {first: []func(s *server){func(s *server) {
			change(s, func(spec *v1alpha1.FloatingIPSpec) { spec.Pod = &v1alpha1.PodReference{Name: "rival", UID: "rival"} })
		}}, want: ErrConflict},
		"another owner": {first: []func(s *server){func(s *server) {
			change(s, func(spec *v1alpha1.FloatingIPSpec) {
				spec.Pod, spec.LastPod, spec.Owner.Name, spec.Owner.UID = nil, "x", "db", "e"
			})
		}}, want: ErrConflict},
		"reserved": {first: []func(s *server){func(s *server) {
			change(s, func(spec *v1alpha1.FloatingIPSpec) { spec.Pod, spec.LastPod, spec.Reserved = nil, "old", true })
		}}, want: ErrConflict},
		"freed": {first: []func(s *server){func(s *server) { s.Remove(s.IP("10.0.70.2")) }}, want: ErrConflict},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer()
			i := open(t, s, testPool("web", "10.0.70.2-10.0.70.9"))
			commit(t, i, reserve(t, i, of("old")))
			i.KnowPods(knownPods{gone: "old"})
			next := reserve(t, i, of("next"))
			if got := next.Names(); got != "10.0.70.2" {
				t.Fatalf("the next pod gets %s, want the address of the one that is gone", got)
			}
			for _, write := range test.first {
				s.Fail(ipamtest.Fault{Verb: "update", Before: func() { write(s) }})
			}
			if err := i.Commit(t.Context(), next, podsAre{current: true, gone: true}); !errors.Is(err, test.want) {
				t.Fatalf("Commit = %v, want %v", err, test.want)
			}
			if ip := s.IP("10.0.70.2"); test.want == nil && (ip.Spec.Pod == nil || ip.Spec.Pod.UID != "next" || ip.Spec.LastPod != "old") {
				t.Errorf("the address is recorded as %+v", ip.Spec)
			}
		})
	}
}
