// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/hostport"
)

func tcpPort(number, containerPort uint16) api.HostPort {
	return api.HostPort{HostPort: number, ContainerPort: containerPort, Protocol: "TCP"}
}

func leads(number, containerPort uint16, pod string) hostport.Mapping {
	m := hostport.Mapping{HostPort: tcpPort(number, containerPort), Pod: netip.MustParseAddr(pod)}
	m.HostIP = netip.IPv4Unspecified()
	return m
}

// booted is when the node started.
var booted = time.Unix(1000, 0)

func running(name, addr string, given ...api.HostPort) podinfo.Running {
	return podinfo.Running{
		Pod:       podinfo.Pod{Pod: api.Pod{Namespace: "ns", Name: name, UID: name}},
		Addresses: []netip.Addr{netip.MustParseAddr(addr)}, Given: given,
		Started: booted.Add(time.Second),
	}
}

// lostState is a node with pods that an agent whose state file is lost gave host ports, and a
// rule that is nobody's.
func lostState(t *testing.T) (*Agent, *world, *fakeForwarder) {
	t.Helper()
	a, w, f := ordinary(t)
	f.found = []hostport.Mapping{
		leads(80, 8080, "10.244.0.2"), leads(20001, 81, "10.244.0.3"), leads(443, 8443, "10.244.0.9"), leads(90, 8080, "10.244.0.2"),
	}
	random := running("random", "10.244.0.3")
	random.HostPorts.Random, random.Told = []api.HostPort{tcpPort(0, 81)}, []api.HostPort{tcpPort(20009, 81)}
	w.running = []podinfo.Running{running("web", "10.244.0.2", tcpPort(80, 8080)), random}
	return a, w, f
}

const (
	webOpen    = "TCP 0.0.0.0:80 to 10.244.0.2:8080"
	randomOpen = "TCP 0.0.0.0:20001 to 10.244.0.3:81"
)

// Host ports of running pods stay open without records, from the first change on; what no pod
// has is closed when the pods are known, and a port that a pod lost before the file was closes.
func TestUnrecordedPorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, w, f := lostState(t)
		w.synced = make(chan struct{})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { a.Run(ctx); close(done) }()
		synctest.Wait()
		f.expect(t, randomOpen, "TCP 0.0.0.0:443 to 10.244.0.9:8443", webOpen, "TCP 0.0.0.0:90 to 10.244.0.2:8080")
		close(w.synced)
		synctest.Wait()
		f.expect(t, randomOpen, webOpen)
		if in, err := a.Inspect(ctx, "", false); err != nil || len(in.OrphanPorts) != 2 || in.OrphanPorts[0].Pod != w.running[0].Pod.Pod {
			t.Errorf("Inspect() shows %+v, %v", in.OrphanPorts, err)
		}
		must(t, a.Gone(ctx, w.running[0].Pod.Pod), a.Gone(ctx, api.Pod{Namespace: "ns", Name: "random", UID: "another"}))
		f.expect(t, randomOpen)
		stop()
		<-done
	})
}

// The kernel may have lost them, too: after the loss of the file the API says which ports
// there were. Of what users can write on a pod it is only a port that the node may choose.
func TestUnrecordedPortsOfLostRules(t *testing.T) {
	a, w, f := lostState(t)
	f.found, f.used = nil, []uint16{20005}
	thief := running("thief", "10.244.0.4", tcpPort(80, 22))
	thief.HostPorts.Random = []api.HostPort{tcpPort(0, 22)}
	thief.Told = []api.HostPort{tcpPort(22, 22), tcpPort(20005, 22), tcpPort(20006, 23), tcpPort(20007, 22)}
	six := running("six", "2001:db8::6", api.HostPort{HostPort: 53, ContainerPort: 53, Protocol: "UDP", HostIP: netip.MustParseAddr("2001:db8::1")})
	recorded := running("recorded", "10.244.0.7", tcpPort(8080, 80))
	w.running = append(w.running, thief, six, recorded)
	old := record("c", state.Withdrawn, "", nil)
	old.Pod, old.HostPorts = recorded.Pod.Pod, []state.HostPort{{HostPort: tcpPort(8080, 80)}}
	must(t, a.Store.Put(old), a.findPods(t.Context()))
	f.expect(t, "TCP 20009 to 10.244.0.3:81", "TCP 80 to 10.244.0.2:8080", "UDP [2001:db8::1]:53 to [2001:db8::6]:53")

	// Nor is it one that another pod has, too, which may come later in the order of names.
	for _, held := range []func(*podinfo.Running){
		func(p *podinfo.Running) { p.Given = []api.HostPort{tcpPort(20003, 80)} },
		func(p *podinfo.Running) {
			p.HostPorts.Random, p.Told = []api.HostPort{tcpPort(0, 80)}, []api.HostPort{tcpPort(20003, 80)}
		},
	} {
		early, late := running("a-thief", "10.244.0.4"), running("z-holder", "10.244.0.5")
		early.HostPorts.Random, early.Told = []api.HostPort{tcpPort(0, 22)}, []api.HostPort{tcpPort(20003, 22)}
		held(&late)
		w.running = []podinfo.Running{early, late}
		must(t, New(a.Options).findPods(t.Context()))
		want := []string(nil)
		if len(late.Given) > 0 {
			want = []string{"TCP 20003 to 10.244.0.5:80"}
		}
		f.expect(t, want...)
	}

	// A file that was there says what is open, and a plugin opens its ports itself.
	for name, change := range map[string]func(*Agent){
		"another start": func(b *Agent) {
			path := t.TempDir() + "/agent.db"
			for range 2 {
				store, err := state.Open(path)
				must(t, err)
				if b.Store = store; store.Made() {
					must(t, store.Close())
				}
			}
			t.Cleanup(func() { _ = b.Store.Close() })
		},
		"portmap": func(b *Agent) { b.Networks = portmapNetworks{} },
	} {
		t.Run(name, func(t *testing.T) {
			f.open = nil
			b := New(a.Options)
			change(b)
			must(t, b.findPods(t.Context()))
			f.expect(t)
		})
	}
}

// After a restart of the node, too, the addresses that the API has are other pods' by now, until
// it knows of a container that started since.
func TestUnrecordedPortsOfEarlierBoot(t *testing.T) {
	a, w, f := lostState(t)
	f.found = nil
	w.running[0].Started, w.running[1].Started = booted.Add(-time.Hour), time.Time{}
	again := running("again", "10.244.0.2", tcpPort(443, 443))
	w.running = append(w.running, again)
	must(t, a.findPods(t.Context()))
	f.expect(t, "TCP 443 to 10.244.0.2:443")
}

// Another pod does not get such a port while its pod is alive, the pod's next container does,
// and its DEL closes it.
func TestUnrecordedPortsHaveAnOwner(t *testing.T) {
	const mine = `{"hostPort":80,"containerPort":8080}`
	a, w, f := lostState(t)
	if err := add(t, a, ports("other", mine)); !errors.Is(err, ErrHostPortTaken) {
		t.Errorf("another pod: %v", err)
	}
	w.pod.Pod, w.pod.HostPorts, w.podIP = w.running[1].Pod.Pod, w.running[1].HostPorts, "10.244.0.6"
	must(t, add(t, a, addRequest("new")))
	f.expect(t, webOpen, "TCP 20001 to 10.244.0.6:81")
	must(t, a.Del(t.Context(), addRequest("new")))
	f.expect(t, webOpen)

	del := addRequest("old")
	del.Args = "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web;K8S_POD_UID=web"
	del.Config = json.RawMessage(`{"prevResult":{"cniVersion":"1.0.0","ips":[{"address":"10.244.0.99/24"}]}}`)
	must(t, a.Del(t.Context(), del))
	f.expect(t, webOpen) // an earlier sandbox of the pod
	del.Config = json.RawMessage(`{"prevResult":{"cniVersion":"1.0.0","ips":[{"address":"10.244.0.2/24"}]}}`)
	must(t, a.Del(t.Context(), del))
	f.expect(t)

	// Without the result the pod's UID says which.
	b, _, f := lostState(t)
	must(t, b.findPods(t.Context()))
	del.Config = nil
	must(t, b.Del(t.Context(), del))
	f.expect(t, randomOpen)

	// The API knows first that the pod is gone.
	c, w, f := lostState(t)
	must(t, c.findPods(t.Context()))
	w.alive = false
	if err := add(t, c, ports("other", mine)); !errors.Is(err, podinfo.ErrPodReplaced) {
		t.Errorf("a pod that is gone, too: %v", err)
	}
	f.expect(t, randomOpen)
}

// Where the kernel does not say what it forwards, nothing is closed.
func TestUnrecordedPortsUnread(t *testing.T) {
	a, _, f := lostState(t)
	f.open, f.err = []string{webOpen}, errors.New("no netfilter")
	if _, err := a.applyPorts(t.Context()); !errors.Is(err, f.err) {
		t.Errorf("applyPorts() = %v", err)
	}
	f.expect(t, webOpen)
	f.err = nil
	must(t, a.findPods(t.Context()))
	f.expect(t, randomOpen, webOpen)
}
