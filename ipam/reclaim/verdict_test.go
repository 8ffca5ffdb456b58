// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"fmt"
	"math"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/customkind"
	"github.com/berth-dev/berth/ipam/podrequest"
)

// Every kind of owner in every situation, and whether it wants an address whose
// pod is gone.
var wantCases = []struct {
	name  string
	owner *v1alpha1.Owner
	w     workload
	at    standing
	// wants, also with keepOnScaleDown if kept.
	wants, kept bool
}{
	{"StatefulSet, in range", set("web-2"), pods(3), oldest, true, true},
	{"StatefulSet, scaled down", set("web-3"), pods(3), oldest, false, true},
	{"StatefulSet, scaled to zero", set("web-0"), pods(0), oldest, false, true},
	{"StatefulSet, below ordinals.start", set("web-1"), from(2, 3), oldest, false, true},
	{"StatefulSet, the last with ordinals.start", set("web-4"), from(2, 3), oldest, true, true},
	{"StatefulSet, beyond the last with ordinals.start", set("web-5"), from(2, 3), oldest, false, true},
	{"StatefulSet, near the limit of ordinals", set("web-2147483647"), from(math.MaxInt32, math.MaxInt32), oldest, true, true},
	{"StatefulSet, a second address for the pod name", set("web-0"), pods(3), after(1), false, false},
	{"StatefulSet of pods with two addresses, the second", set("web-0"), having(2, 3), after(1), true, true},
	{"StatefulSet of pods with two addresses, a third", set("web-0"), having(2, 3), after(2), false, false},
	{"StatefulSet, dual-stack, the other family", set("web-0"), having(2, 3), standing{family: v1alpha1.IPv6, rank: 0, age: 0, families: 2}, true, true},
	{"StatefulSet, dual-stack, a second of the other family", set("web-0"), having(2, 3), standing{family: v1alpha1.IPv6, rank: 1, age: 1, families: 2}, false, false},
	{"StatefulSet, IPv6 while the template now says IPv4", set("web-0"), v4Only(3), standing{family: v1alpha1.IPv6, rank: 0, age: 0, families: 2}, true, true},
	{"StatefulSet, deleted", set("web-0"), workload{}, oldest, false, false},
	{"StatefulSet, a pod whose name is not an ordinal's", set("other"), pods(3), oldest, true, true},
	{"OpenKruise StatefulSet, after a reserved ordinal", kruise("web-3"), reserving(3, customkind.Span{First: 1, Last: 1}), oldest, true, true},
	{"OpenKruise StatefulSet, a reserved ordinal", kruise("web-1"), reserving(3, customkind.Span{First: 1, Last: 1}), oldest, false, true},
	{"OpenKruise StatefulSet, beyond the last", kruise("web-4"), reserving(3, customkind.Span{First: 1, Last: 1}), oldest, false, true},
	{"OpenKruise StatefulSet, ranges that overlap", kruise("web-7"), reserving(3, customkind.Span{First: 3, Last: 5}, customkind.Span{First: 1, Last: 4}), oldest, true, true},
	{"OpenKruise StatefulSet, beyond ranges that overlap", kruise("web-8"), reserving(3, customkind.Span{First: 3, Last: 5}, customkind.Span{First: 1, Last: 4}), oldest, false, true},
	{"OpenKruise StatefulSet, deleted", kruise("web-0"), workload{}, oldest, false, false},
	{"custom kind that numbers its pods from one, the last", database("db-3"), pods(3), standing{family: v1alpha1.IPv4, name: 2}, true, true},
	{"custom kind that numbers its pods, one too many", database("db-1"), pods(3), standing{family: v1alpha1.IPv4, name: 3}, false, true},
	{"custom kind that says its ordinals, beyond them", database("db-3"), workload{exists: true, replicas: 3, ordinals: true}, oldest, false, true},
	{"custom kind with pod names but no scale", kruise("web-9"), workload{exists: true, unbounded: true}, after(7), true, true},

	{"Deployment, beyond the spare one", shared("apps/v1", "Deployment"), sparing(2, 1), after(3), false, true},
	{"Deployment that keeps the oldest, one of them without a pod", shared("apps/v1", "Deployment"), unlimited(2), standing{family: v1alpha1.IPv4, rank: 3, age: 1, families: 1}, true, true},
	{"Deployment that keeps the oldest, a young one with a pod that ends", shared("apps/v1", "Deployment"), unlimited(2), standing{family: v1alpha1.IPv4, rank: 0, age: 2, families: 1}, false, true},
	{"Deployment, among the oldest", shared("apps/v1", "Deployment"), pods(3), after(2), true, true},
	{"Deployment, the surge's", shared("apps/v1", "Deployment"), pods(3), after(3), false, true},
	{"Deployment, scaled to zero", shared("apps/v1", "Deployment"), pods(0), oldest, false, true},
	{"Deployment of pods with two addresses, the last wanted", shared("apps/v1", "Deployment"), having(2, 3), after(5), true, true},
	{"Deployment of pods with two addresses, the surge's", shared("apps/v1", "Deployment"), having(2, 3), after(6), false, true},
	{"Deployment, dual-stack, the last of a family", shared("apps/v1", "Deployment"), dualStack(3), standing{family: v1alpha1.IPv6, rank: 2, age: 2, families: 2}, true, true},
	{"Deployment, dual-stack, the surge's", shared("apps/v1", "Deployment"), dualStack(3), standing{family: v1alpha1.IPv6, rank: 3, age: 3, families: 2}, false, true},
	{"Deployment, both addresses of a pod may be IPv4, the last of six", shared("apps/v1", "Deployment"), having(2, 3), standing{family: v1alpha1.IPv4, rank: 5, age: 5, families: 2}, true, true},
	{"Deployment, both addresses of a pod may be IPv4, a seventh", shared("apps/v1", "Deployment"), having(2, 3), standing{family: v1alpha1.IPv4, rank: 6, age: 6, families: 2}, false, true},
	{"Deployment, IPv6 while the template says IPv4", shared("apps/v1", "Deployment"), v4Only(3), standing{family: v1alpha1.IPv6, rank: 0, age: 0, families: 2}, false, true},
	{"Deployment, deleted", shared("apps/v1", "Deployment"), workload{}, oldest, false, false},
	{"ReplicaSet, among the oldest", shared("apps/v1", "ReplicaSet"), pods(1), oldest, true, true},
	{"ReplicaSet, scaled down", shared("apps/v1", "ReplicaSet"), pods(1), after(1), false, true},
	{"ReplicaSet, deleted", shared("apps/v1", "ReplicaSet"), workload{}, oldest, false, false},
	{"Job, running", shared("batch/v1", "Job"), pods(2), after(1), true, true},
	{"Job, more than its parallelism", shared("batch/v1", "Job"), pods(2), after(2), false, true},
	{"Job, done or deleted", shared("batch/v1", "Job"), workload{}, oldest, false, false},
	{"CronJob, between runs", shared("batch/v1", "CronJob"), pods(2), after(1), true, true},
	{"CronJob, of a run beside another", shared("batch/v1", "CronJob"), pods(2), after(2), false, true},
	{"CronJob, deleted", shared("batch/v1", "CronJob"), workload{}, oldest, false, false},
	{"Deployment whose pods ask for no address", shared("apps/v1", "Deployment"), addressless(3), oldest, false, false},
	{"StatefulSet whose pods ask for no address", set("web-0"), addressless(3), oldest, false, false},
	{"custom kind without scale whose pods ask for no address", shared("example.org/v1", "Thing"), workload{exists: true, unbounded: true, addressless: true}, oldest, false, false},
	{"DaemonSet whose pods ask for no address", daemon, workload{exists: true, unbounded: true, addressless: true}, oldest, false, false},
	{"custom kind, among the oldest", shared("example.org/v1", "Thing"), pods(3), after(2), true, true},
	{"custom kind, scaled down", shared("example.org/v1", "Thing"), pods(3), after(3), false, true},
	{"custom kind that says nothing of its pods", shared("example.org/v1", "Thing"), workload{exists: true, replicas: 1}, after(99), true, true},
	{"custom kind without scale", shared("example.org/v1", "Thing"), workload{exists: true, unbounded: true}, after(99), true, true},
	{"custom kind, deleted or no longer served", shared("example.org/v1", "Thing"), workload{}, oldest, false, false},

	{"DaemonSet, on its node", daemon, everywhere, oldest, true, true},
	{"DaemonSet, a second address for the node", daemon, everywhere, after(1), false, false},
	{"DaemonSet of pods with two addresses, a third for the node", daemon, workload{exists: true, unbounded: true, each: podrequest.Demand{Total: 2}}, after(2), false, false},
	{"DaemonSet that surges, a second address for the node", daemon, surging(1), after(1), true, true},
	{"DaemonSet that surges, a third address for the node", daemon, surging(1), after(2), false, false},
	{"DaemonSet that surges, of pods with two addresses, a fourth for the node", daemon, surging(2), after(3), true, true},
	{"DaemonSet that surges, of pods with two addresses, a fifth for the node", daemon, surging(2), after(4), false, false},
	{"DaemonSet that surges, of pods of unknown demand", daemon, surging(0), after(99), true, true},
	{"DaemonSet, the node is gone or not selected", daemon, workload{exists: true, unbounded: true, offNode: true, each: podrequest.Demand{Total: 1}}, oldest, false, false},
	{"DaemonSet, deleted", daemon, workload{}, oldest, false, false},

	{"bare pod, there", bare, workload{exists: true, unbounded: true}, after(1), true, true},
	{"bare pod, gone", bare, workload{}, oldest, false, false},

	{"IPClaim, within its size", claim, claims(2), after(1), true, true},
	{"IPClaim, beyond its size", claim, claims(2), after(2), false, false},
	{"IPClaim, within its size in the other family", claim, claims(2), standing{family: v1alpha1.IPv6, rank: 1, age: 1, families: 2}, true, true},
	{"IPClaim, deleted", claim, workload{claim: true}, oldest, false, false},
}

var (
	oldest     = standing{family: v1alpha1.IPv4, families: 1}
	daemon     = &v1alpha1.Owner{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "web", NodeName: "node1"}
	bare       = &v1alpha1.Owner{APIVersion: "v1", Kind: "Pod", Name: "web", PodName: "web"}
	claim      = &v1alpha1.Owner{APIVersion: "berth.dev/v1alpha1", Kind: "IPClaim", Name: "web"}
	everywhere = workload{exists: true, unbounded: true, each: podrequest.Demand{Total: 1}}
)

func set(pod string) *v1alpha1.Owner {
	return &v1alpha1.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web", PodName: pod}
}

func kruise(pod string) *v1alpha1.Owner {
	return &v1alpha1.Owner{APIVersion: "apps.kruise.io/v1beta1", Kind: "StatefulSet", Name: "web", PodName: pod}
}

func database(pod string) *v1alpha1.Owner {
	return &v1alpha1.Owner{APIVersion: "example.dev/v1", Kind: "Database", Namespace: "ns", Name: "db", PodName: pod}
}

func shared(apiVersion, kind string) *v1alpha1.Owner {
	return &v1alpha1.Owner{APIVersion: apiVersion, Kind: kind, Name: "web"}
}

func after(n int64) standing { return standing{family: v1alpha1.IPv4, rank: n, families: 1} }

func pods(n int64) workload { return having(1, n) }

func dualStack(n int64) workload {
	w := having(2, n)
	w.each.Families = []v1alpha1.IPFamily{v1alpha1.IPv4, v1alpha1.IPv6}
	return w
}

func having(each, n int64) workload {
	return workload{exists: true, replicas: n, each: podrequest.Demand{Total: each}}
}

// surging starts the new pod of a node before the old one ends.
func surging(each int64) workload {
	return workload{exists: true, unbounded: true, spare: 1, each: podrequest.Demand{Total: each}}
}

func sparing(n, spare int64) workload {
	w := pods(n)
	w.spare = spare
	return w
}

func unlimited(n int64) workload {
	w := pods(n)
	w.oldestFirst = true
	return w
}

func addressless(n int64) workload {
	w := pods(n)
	w.each, w.addressless = podrequest.Demand{}, true
	return w
}

func from(start, n int64) workload {
	w := pods(n)
	w.start = start
	return w
}

func reserving(n int64, spans ...customkind.Span) workload {
	w := pods(n)
	w.reserved = spans
	return w
}

func v4Only(n int64) workload {
	w := pods(n)
	w.each.Families = []v1alpha1.IPFamily{v1alpha1.IPv4}
	return w
}

func claims(size int64) workload { return workload{claim: true, exists: true, replicas: size} }

// Every cell of the table in the package documentation: policies, owners,
// situations.
func TestDecide(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, test := range wantCases {
		for _, keepOnScaleDown := range []bool{false, true} {
			for _, held := range []bool{true, false} {
				wants := test.wants
				if keepOnScaleDown {
					wants = test.kept
				}
				if got := test.w.wants(&v1alpha1.FloatingIPSpec{Owner: test.owner, KeepOnScaleDown: keepOnScaleDown}, test.at); got != wants {
					t.Errorf("%s, keepOnScaleDown %v: wants is %v", test.name, keepOnScaleDown, got)
				}
				stays, retained := keep, free
				if held {
					stays = retain
				}
				if wants {
					retained = stays
				}
				for policy, want := range map[v1alpha1.ReleasePolicy]action{
					v1alpha1.ReleasePodDeleted: free,
					v1alpha1.ReleaseRetain:     retained,
					v1alpha1.ReleaseNever:      stays,
					"":                         free,
				} {
					t.Run(fmt.Sprintf("%s/%q/held=%v/keepOnScaleDown=%v", test.name, policy, held, keepOnScaleDown), func(t *testing.T) {
						spec := v1alpha1.FloatingIPSpec{Owner: test.owner, ReleasePolicy: policy, KeepOnScaleDown: keepOnScaleDown}
						if held {
							spec.Pod = &v1alpha1.PodReference{Name: "web-2", UID: "u"}
						}
						s := situation{now: now, owner: test.w, at: test.at}
						checkDecision(t, spec, s, want)
						// An address that is freed for its rank must be found.
						ranked := isShared(test.owner) && test.w.exists && !test.w.addressless && !held && policy == v1alpha1.ReleaseRetain
						if ip := (&v1alpha1.FloatingIP{Spec: spec}); ranked && want == free && !yields(ip) {
							t.Error("nobody looks at it when too many come before it")
						}
					})
				}
			}
		}
	}
}

// checkDecision checks a cell, alone and with further conditions.
func checkDecision(t *testing.T, spec v1alpha1.FloatingIPSpec, s situation, want action) {
	t.Helper()
	check := func(what string, spec v1alpha1.FloatingIPSpec, s situation, want verdict) {
		t.Helper()
		if got := decide(&spec, s); got != want {
			t.Errorf("%s: got %+v, want %+v", what, got, want)
		}
	}
	check("pod gone", spec, s, verdict{action: want})

	with := s
	with.unused = true
	check("no pod ever had it", spec, with, verdict{action: free})

	reserved := spec
	reserved.Reserved = true
	check("reserved", reserved, s, verdict{})

	with = s
	with.superseded = true
	bound := want
	if spec.ReleasePolicy == v1alpha1.ReleaseRetain {
		bound = free
	}
	check("the pod has another", spec, with, verdict{action: bound})

	with = s
	with.cooldown = time.Minute
	given := spec
	given.LastPod = "web-9"
	cooled := want
	if want == free {
		cooled = cool
	}
	check("the pool has a cooldown", given, with, verdict{action: cooled})
	if spec.Pod == nil {
		check("the pool has a cooldown and no pod had the address", spec, with, verdict{action: want})
	}

	restored := spec
	restored.KeepUntil = &metav1.Time{Time: s.now.Add(time.Hour)}
	if spec.Pod == nil {
		with = s
		with.superseded, with.cooldown = true, time.Minute
		check("restored from a backup", restored, with, verdict{again: time.Hour})
	} else {
		check("restored from a backup, with a pod", restored, s, verdict{action: want})
	}
	restored.KeepUntil = &metav1.Time{Time: s.now}
	check("restored long ago", restored, s, verdict{action: want})

	limited := spec
	limited.RetainFor = &metav1.Duration{Duration: time.Hour}
	for _, age := range []time.Duration{0, time.Hour - time.Second, time.Hour, 2 * time.Hour} {
		since := metav1.NewTime(s.now.Add(-age))
		limited.Since = &since
		expected := verdict{action: want}
		if want == keep {
			if expected.again = time.Hour - age; age >= time.Hour {
				expected = verdict{action: free}
			}
		}
		check(fmt.Sprintf("retained for %s", age), limited, s, expected)
		old := limited
		old.Since = nil
		with = s
		with.created = since.Time
		check(fmt.Sprintf("made %s ago", age), old, with, expected)
	}
}

// A preallocated address of a claim stays, regardless of its policy and retainFor.
func TestDecidePreallocated(t *testing.T) {
	now := time.Now()
	long := metav1.NewTime(now.Add(-time.Hour))
	for _, policy := range []v1alpha1.ReleasePolicy{v1alpha1.ReleasePodDeleted, v1alpha1.ReleaseRetain, v1alpha1.ReleaseNever} {
		for rank, within := range []bool{true, true, false} {
			for _, exists := range []bool{true, false} {
				spec := v1alpha1.FloatingIPSpec{Owner: claim, ReleasePolicy: policy, RetainFor: &metav1.Duration{Duration: time.Second}, Since: &long}
				w := claims(2)
				w.exists, w.ahead = exists, []v1alpha1.IPFamily{v1alpha1.IPv4}
				want := free
				if within && exists {
					want = keep
				}
				if got := decide(&spec, situation{now: now, owner: w, at: after(int64(rank))}); got != (verdict{action: want}) {
					t.Errorf("%s, %d before it, claim exists %v: got %+v, want %v", policy, rank, exists, got, want)
				}
				if ip := (&v1alpha1.FloatingIP{Spec: spec}); !yields(ip) {
					t.Errorf("%s: nobody looks at it when too many come before it", policy)
				}
				six := standing{family: v1alpha1.IPv6, rank: int64(rank), families: 2}
				if got := decide(&spec, situation{now: now, owner: w, at: six}); got != (verdict{action: free}) {
					t.Errorf("%s: an address of a family that is not preallocated: got %+v, want free", policy, got)
				}
			}
		}
	}
}

// Addresses without an owner.
func TestDecideCooldown(t *testing.T) {
	now := time.Now()
	released, later := metav1.NewTime(now.Add(-time.Minute)), metav1.NewTime(now.Add(time.Hour))
	pod := &v1alpha1.PodReference{Name: "web"}
	for _, test := range []struct {
		name     string
		spec     v1alpha1.FloatingIPSpec
		cooldown time.Duration
		want     verdict
	}{
		{"cooling", v1alpha1.FloatingIPSpec{ReleasedAt: &released}, 3 * time.Minute, verdict{again: 2 * time.Minute}},
		{"cooled down", v1alpha1.FloatingIPSpec{ReleasedAt: &released}, time.Minute, verdict{action: free}},
		{"the pool is gone, or its cooldown", v1alpha1.FloatingIPSpec{ReleasedAt: &released}, 0, verdict{action: free}},
		{"restored before its pool", v1alpha1.FloatingIPSpec{ReleasedAt: &released, KeepUntil: &later}, 0, verdict{again: time.Hour}},
		{"restored, and the pool's cooldown is longer now", v1alpha1.FloatingIPSpec{ReleasedAt: &released, KeepUntil: &later}, 121 * time.Minute, verdict{again: 2 * time.Hour}},
		{"cooling, but reserved", v1alpha1.FloatingIPSpec{ReleasedAt: &released, Reserved: true}, 0, verdict{}},
		{"somebody else's", v1alpha1.FloatingIPSpec{}, time.Minute, verdict{}},
		{"somebody else's, with a pod", v1alpha1.FloatingIPSpec{ReleasedAt: &released, Pod: pod}, 0, verdict{}},
	} {
		if got := decide(&test.spec, situation{now: now, cooldown: test.cooldown}); got != test.want {
			t.Errorf("%s: got %+v, want %+v", test.name, got, test.want)
		}
	}
}

// An address that a host outside of the cluster has is given to no new owner for a day.
func TestDecideConflict(t *testing.T) {
	now := time.Now()
	released, dayAgo := metav1.NewTime(now.Add(-time.Hour)), metav1.NewTime(now.Add(-24*time.Hour))
	owned := v1alpha1.FloatingIPSpec{Owner: &v1alpha1.Owner{Kind: "Pod"}, ReleasePolicy: v1alpha1.ReleasePodDeleted, Pod: &v1alpha1.PodReference{Name: "web"}}
	never := owned
	never.ReleasePolicy = v1alpha1.ReleaseNever
	for _, test := range []struct {
		name string
		spec v1alpha1.FloatingIPSpec
		s    situation
		want verdict
	}{
		{"freed", owned, situation{}, verdict{action: cool}},
		{"no pod ever had it", owned, situation{unused: true}, verdict{action: cool}},
		{"freed with a cooldown", owned, situation{cooldown: time.Minute}, verdict{action: cool}},
		{"kept", never, situation{}, verdict{action: retain}},
		{"cooling", v1alpha1.FloatingIPSpec{ReleasedAt: &released}, situation{cooldown: 2 * time.Hour}, verdict{again: time.Hour}},
		{"cooled down", v1alpha1.FloatingIPSpec{ReleasedAt: &released}, situation{cooldown: time.Minute}, verdict{again: 23 * time.Hour}},
		{"avoided for a day", v1alpha1.FloatingIPSpec{ReleasedAt: &dayAgo}, situation{cooldown: time.Minute}, verdict{action: free}},
		{"avoided for a day, in a pool that rests longer", v1alpha1.FloatingIPSpec{ReleasedAt: &dayAgo}, situation{cooldown: 25 * time.Hour}, verdict{again: time.Hour}},
		{"of no owner, and freed by nobody", v1alpha1.FloatingIPSpec{}, situation{}, verdict{}},
	} {
		test.s.now, test.s.conflict = now, true
		if got := decide(&test.spec, test.s); got != test.want {
			t.Errorf("%s: got %+v, want %+v", test.name, got, test.want)
		}
	}
}
