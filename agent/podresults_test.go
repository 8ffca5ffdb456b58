// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"testing"

	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// A pod is told what it got until the watch shows that it says so, again if a user drops or changes
// that, and never after its container or itself has gone. An agent that was started anew tells the
// same.
func TestUntold(t *testing.T) {
	for name, c := range map[string]struct {
		before func(w *world)
		after  func(a *Agent, w *world, said map[string]string) error
		told   bool
	}{
		"nothing said": {told: true},
		"all said":     {after: func(_ *Agent, w *world, said map[string]string) error { w.annotations = said; return nil }},
		"more said": {after: func(_ *Agent, w *world, said map[string]string) error {
			said["more"] = "yes"
			w.annotations = said
			return nil
		}},
		"one dropped": {after: func(_ *Agent, w *world, said map[string]string) error {
			delete(said, v1alpha1.AnnotationHostPortsStatus)
			w.annotations = said
			return nil
		}, told: true},
		"one changed": {after: func(_ *Agent, w *world, said map[string]string) error {
			said[v1alpha1.AnnotationNetworkStatus] = "[]"
			w.annotations = said
			return nil
		}, told: true},
		"the agent started anew":          {after: func(a *Agent, _ *world, _ map[string]string) error { *a = *New(*a.Options); return nil }, told: true},
		"the watch does not know the pod": {after: func(_ *Agent, w *world, _ map[string]string) error { w.unknown = true; return nil }},
		"the container is gone":           {after: func(a *Agent, _ *world, _ map[string]string) error { return a.Del(t.Context(), addRequest("c")) }},
		"GC":                              {after: func(a *Agent, _ *world, _ map[string]string) error { return a.GC(t.Context(), gcRequest()) }},
		"the pod is gone":                 {after: func(a *Agent, w *world, _ map[string]string) error { return a.Gone(t.Context(), w.pod.Pod) }},
		"the node was started anew": {after: func(a *Agent, _ *world, _ map[string]string) error {
			if _, err := a.Store.EndBoot("first"); err != nil {
				return err
			}
			_, err := a.Store.EndBoot("second")
			return err
		}},
		"neither further networks nor ports": {before: func(w *world) { w.named, w.pod.HostPorts = nil, podinfo.HostPorts{} }},
	} {
		t.Run(name, func(t *testing.T) {
			a, w, _ := ordinary(t)
			w.named = named("storage")
			w.pod.HostPorts = podinfo.HostPorts{Random: []api.HostPort{{ContainerPort: 80, Protocol: "TCP"}}}
			if c.before != nil {
				c.before(w)
			}
			must(t, add(t, a, addRequest("c")))
			if c.after != nil {
				must(t, c.after(a, w, saidBy(t, a)))
			}
			got := a.Untold(t.Context())
			if (len(got) == 1) != c.told || len(got) > 1 {
				t.Errorf("untold is %+v, want some: %t", got, c.told)
			}
		})
	}
}

// saidBy returns the annotations that the agent's only pod is to have.
func saidBy(t *testing.T, a *Agent) map[string]string {
	t.Helper()
	all := a.Untold(t.Context())
	if len(all) != 1 {
		t.Fatalf("untold is %+v", all)
	}
	return all[0].Annotations()
}

func gcRequest() *api.Request {
	return &api.Request{Command: "GC", Config: json.RawMessage(`{"cni.dev/valid-attachments":[]}`)}
}

// A mirror that somebody deleted is told again, by the UID of the next one.
func TestUntoldMirror(t *testing.T) {
	a, w := newAgent(t)
	w.named, w.pod.Static = named("storage"), "manifest"
	must(t, add(t, a, addRequest("c")))
	w.mirror = "next"
	if got := a.Untold(t.Context()); len(got) != 1 || got[0].UID != "next" || got[0].Namespace != "ns" || got[0].Name != "p" {
		t.Errorf("untold is %+v", got)
	}
}

// Two containers of a pod do not make it say one thing and the other in turn.
func TestUntoldOfTwoContainers(t *testing.T) {
	a, w := newAgent(t)
	w.pod.Wants, w.named = 0, named("storage")
	for container, addr := range map[string]string{"first": "10.244.0.5", "second": "10.244.0.6"} {
		w.podIP = addr
		must(t, add(t, a, addRequest(container)))
	}
	w.annotations = saidBy(t, a)
	if got := a.Untold(t.Context()); len(got) > 0 {
		t.Errorf("the pod says what it is told, and is told %+v", got)
	}
	must(t, a.Del(t.Context(), addRequest("first")))
	if got := a.Untold(t.Context()); len(got) != 1 {
		t.Errorf("untold of the container that is left: %+v", got)
	}
}

// Whatever changes what is untold has it told.
func TestTellSoon(t *testing.T) {
	a, w := newAgent(t)
	asked := 0
	a.TellSoon = func() { asked++ }
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"ADD", func() error { return add(t, a, addRequest("c")) }},
		{"a pod came, or its annotations", func() error { a.Changed(w.pod.Pod); return nil }},
		{"the pod is gone", func() error { return a.Gone(t.Context(), w.pod.Pod) }},
		{"DEL", func() error { return a.Del(t.Context(), addRequest("c")) }},
	} {
		asked = 0
		must(t, step.do())
		if asked == 0 {
			t.Errorf("%s: nobody is asked to tell", step.name)
		}
	}
}
