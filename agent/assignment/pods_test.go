// SPDX-License-Identifier: Apache-2.0

package assignment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/ipamtest"
)

func result(i, size int) v1alpha1.PodResult {
	return v1alpha1.PodResult{Namespace: "ns", Name: "p", UID: types.UID(fmt.Sprint("uid-", i)), NetworkStatus: strings.Repeat(`"`, size)}
}

func results(n, size int) (all []v1alpha1.PodResult) {
	for i := range n {
		all = append(all, result(i, size))
	}
	return all
}

// However many pods are to be told, and however much, the object can be written, and all are told
// in the end.
func TestFitting(t *testing.T) {
	for name, test := range map[string]struct {
		all   []v1alpha1.PodResult
		least int // that are told at first
	}{
		"none":                          {nil, 0},
		"some":                          {results(3, 100), 3},
		"as many as the list takes":     {results(mostPods, 100), mostPods},
		"thousands":                     {results(3000, 100), mostPods},
		"with much to tell":             {results(2000, 4000), 100},
		"beside one that never fits":    {append(results(500, 100), result(9999, mostBytes)), 500},
		"beside many with much to tell": {slices.Concat(results(100, 40_000), []v1alpha1.PodResult{result(9999, 10)}), 10},
	} {
		t.Run(name, func(t *testing.T) {
			untold, told := test.all, fitting(test.all)
			if len(told) < test.least {
				t.Errorf("%d of %d pods are told at first", len(told), len(test.all))
			}
			for rounds := 0; len(told) > 0; told = fitting(untold) {
				raw, err := json.Marshal(told)
				if rounds++; err != nil || len(told) > mostPods || len(raw) > mostBytes+2*mostPods || rounds > len(test.all) {
					t.Fatalf("round %d tells %d pods in %d bytes, %v", rounds, len(told), len(raw), err)
				}
				if again := fitting(untold); !slices.Equal(again, told) {
					t.Fatal("the same pods are told in another order")
				}
				untold = slices.DeleteFunc(slices.Clone(untold), func(r v1alpha1.PodResult) bool { return slices.Contains(told, r) })
			}
			for _, r := range untold {
				if len(r.NetworkStatus) < mostBytes {
					t.Fatalf("pod %s is never told", r.UID)
				}
			}
		})
	}
	if told := fitting(append(results(100, 40_000), result(9999, 10))); told[0].UID != "uid-9999" {
		t.Errorf("the pod with the least to tell comes after %s", told[0].UID)
	}
	if fitting(nil) == nil {
		t.Error("of nil nothing would be written, and what was told before would stay")
	}
}

// node is a Carrier that tells pods, without a kernel.
type node struct {
	*Carrier
	api *ipamtest.Server

	mu     sync.Mutex
	untold []v1alpha1.PodResult
}

// say sets what is untold.
func (n *node) say(untold ...v1alpha1.PodResult) {
	n.mu.Lock()
	n.untold = untold
	n.mu.Unlock()
	n.TellSoon()
}

// told waits, and returns what the NodeAssignment tells.
func (n *node) told(t *testing.T, wait time.Duration) []v1alpha1.PodResult {
	t.Helper()
	<-time.After(wait)
	synctest.Wait()
	now, err := n.Assignments.Get(t.Context(), "node1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return now.Status.Pods
}

func onNode(t *testing.T, test func(t *testing.T, n *node)) {
	synctest.Test(t, func(t *testing.T) {
		api := ipamtest.NewServer()
		n := &node{Carrier: New(Options{Node: "node1", Assignments: api.Client().NodeAssignments}), api: api}
		if _, err := n.watch(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() { n.informer.RunWithContext(ctx) })
		group.Go(func() { n.announcer.Run(ctx) })
		group.Go(func() {
			if err := n.TellPods(ctx, func(context.Context) []v1alpha1.PodResult {
				n.mu.Lock()
				defer n.mu.Unlock()
				return n.untold
			}); err != nil {
				t.Error(err)
			}
		})
		test(t, n)
		cancel()
		group.Wait()
	})
}

// What pods are to be told is in the NodeAssignment as soon as there is one, and goes once they say
// it.
func TestTellPods(t *testing.T) {
	onNode(t, func(t *testing.T, n *node) {
		n.say(results(2, 5)...)
		<-time.After(resync)
		n.api.Put(&v1alpha1.NodeAssignment{ObjectMeta: metav1.ObjectMeta{Name: "node1"}})
		if got := n.told(t, 2*debounce); !slices.Equal(got, results(2, 5)) {
			t.Errorf("it tells %+v", got)
		}
		n.say(result(1, 5))
		if got := n.told(t, 2*debounce); !slices.Equal(got, results(2, 5)[1:]) {
			t.Errorf("after one pod says it, %+v", got)
		}
		n.say()
		if got := n.told(t, 2*debounce); len(got) > 0 {
			t.Errorf("after all pods say it, %+v", got)
		}
		// Somebody else's words, or those of an agent that has ended.
		n.api.Put(&v1alpha1.NodeAssignment{ObjectMeta: metav1.ObjectMeta{Name: "node1"}, Status: v1alpha1.NodeAssignmentStatus{Pods: results(3, 5)}})
		if got := n.told(t, 2*debounce); len(got) > 0 {
			t.Errorf("it goes on to tell %+v", got)
		}
	})
}

// A write that fails is repeated.
func TestTellAgain(t *testing.T) {
	onNode(t, func(t *testing.T, n *node) {
		n.api.Put(&v1alpha1.NodeAssignment{ObjectMeta: metav1.ObjectMeta{Name: "node1"}})
		n.told(t, 2*debounce)
		n.api.Fail(ipamtest.Fault{Verb: "update", Name: "node1", Err: errors.New("no answer")})
		n.say(result(1, 5))
		if got := n.told(t, 2*debounce); len(got) > 0 {
			t.Fatalf("the write did not fail: %+v", got)
		}
		if got := n.told(t, tellAgain+2*debounce); len(got) != 1 {
			t.Error("it is not repeated")
		}
	})
}

// The addresses of the node are looked at after changes of theirs, and not each time that a pod is
// told something.
func TestChanged(t *testing.T) {
	before := &v1alpha1.NodeAssignment{ObjectMeta: metav1.ObjectMeta{UID: "1", Generation: 1}}
	for name, test := range map[string]struct {
		change func(*v1alpha1.NodeAssignment)
		looked bool
	}{
		"pods":                {func(a *v1alpha1.NodeAssignment) { a.Status.Pods = results(1, 1) }, false},
		"the spec":            {func(a *v1alpha1.NodeAssignment) { a.Generation++ }, true},
		"another object":      {func(a *v1alpha1.NodeAssignment) { a.UID = "2" }, true},
		"carried by somebody": {func(a *v1alpha1.NodeAssignment) { a.Status.Carried = []string{"10.0.70.2"} }, true},
		"refused by somebody": {func(a *v1alpha1.NodeAssignment) { a.Status.Refused = []v1alpha1.RefusedAddress{{Address: "10.0.70.2"}} }, true},
		"labels and the like": {func(a *v1alpha1.NodeAssignment) { a.Labels = map[string]string{"a": "b"} }, false},
	} {
		c, after := New(Options{Assignments: ipamtest.NewServer().Client().NodeAssignments}), before.DeepCopy()
		test.change(after)
		c.changed(before, after)
		if len(c.soon) == 1 != test.looked || len(c.untold) != 1 {
			t.Errorf("%s: addresses are looked at: %t, pods: %t", name, len(c.soon) == 1, len(c.untold) == 1)
		}
	}
}
