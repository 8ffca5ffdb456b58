// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"

	"github.com/berth-dev/berth/agent/hostports"
	"github.com/berth-dev/berth/agent/podinfo"
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

func running(name, addr string, given ...api.HostPort) podinfo.Running {
	return podinfo.Running{
		Pod:       podinfo.Pod{Pod: api.Pod{Namespace: "ns", Name: name, UID: name}},
		Addresses: []netip.Addr{netip.MustParseAddr(addr)}, Given: given,
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
	random.HostPorts.Random = []api.HostPort{tcpPort(0, 81)}
	w.running = []podinfo.Running{running("web", "10.244.0.2", tcpPort(80, 8080)), random}
	return a, w, f
}

const (
	webOpen    = "TCP 0.0.0.0:80 to 10.244.0.2:8080"
	randomOpen = "TCP 0.0.0.0:20001 to 10.244.0.3:81"
)

// Host ports of running pods stay open without records, from the first change on; a port that no
// pod has is closed when the pods are known, and a port that a pod lost before the file was closes.
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

// Another pod does not get such a port while its pod is alive, the pod's next container does,
// and its DEL closes it.
func TestUnrecordedPortsHaveAnOwner(t *testing.T) {
	const mine = `{"hostPort":80,"containerPort":8080}`
	a, w, f := lostState(t)
	if err := add(t, a, ports("other", mine)); !errors.Is(err, hostports.ErrTaken) {
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
	must(t, b.ports.FindPods(t.Context()))
	del.Config = nil
	must(t, b.Del(t.Context(), del))
	f.expect(t, randomOpen)

	// The API knows first that the pod is gone.
	c, w, f := lostState(t)
	must(t, c.ports.FindPods(t.Context()))
	w.alive = false
	if err := add(t, c, ports("other", mine)); !errors.Is(err, podinfo.ErrPodReplaced) {
		t.Errorf("a pod that is gone, too: %v", err)
	}
	f.expect(t, randomOpen)
}

// Where the kernel's forwards cannot be read, nothing is closed.
func TestUnrecordedPortsUnread(t *testing.T) {
	a, _, f := lostState(t)
	f.open, f.err = []string{webOpen}, errors.New("no netfilter")
	if _, err := a.ports.Apply(t.Context()); !errors.Is(err, f.err) {
		t.Errorf("Apply() = %v", err)
	}
	f.expect(t, webOpen)
	f.err = nil
	must(t, a.ports.FindPods(t.Context()))
	f.expect(t, randomOpen, webOpen)
}
