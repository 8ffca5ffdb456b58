// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"iter"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/agent/policy/ruleset/rulesettest"
)

// fakeCluster is a cluster in memory with the Index of a node, which it tells of each change.
type fakeCluster struct {
	namespaces map[string]map[string]string
	pods       map[string]map[string]*Pod
	index      *Index
	// read are the namespaces whose pods were read.
	read []string
}

func newFakeCluster() *fakeCluster {
	w := &fakeCluster{namespaces: map[string]map[string]string{}, pods: map[string]map[string]*Pod{}}
	w.index = NewIndex(w)
	return w
}

// Namespaces implements Cluster.
func (w *fakeCluster) Namespaces() iter.Seq2[string, map[string]string] {
	return maps.All(w.namespaces)
}

// Pod implements Cluster.
func (w *fakeCluster) Pod(name types.NamespacedName) *Pod {
	for _, pod := range w.pods[name.Namespace] {
		if pod.Name == name.Name {
			return clonePod(pod)
		}
	}
	return nil
}

// Pods implements Cluster. It gives each time the same value, as real ones may.
func (w *fakeCluster) Pods(namespace string) iter.Seq[*Pod] {
	return func(yield func(*Pod) bool) {
		w.read = append(w.read, namespace)
		var shared Pod
		for _, pod := range w.pods[namespace] {
			shared = *clonePod(pod)
			if !yield(&shared) {
				return
			}
			clear(shared.Labels)
			clear(shared.Addresses)
		}
	}
}

func clonePod(pod *Pod) *Pod {
	clone := *pod
	clone.Labels, clone.Addresses, clone.Ports = maps.Clone(pod.Labels), slices.Clone(pod.Addresses), slices.Clone(pod.Ports)
	return &clone
}

func (w *fakeCluster) namespace(name string, labels map[string]string) {
	w.namespaces[name] = labels
	w.index.SetNamespace(name, labels)
}

func (w *fakeCluster) pod(namespace, name string, labels map[string]string, addresses ...string) *Pod {
	p := &Pod{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}, UID: types.UID(namespace + "/" + name), Labels: labels, Addresses: addrs(addresses...)}
	w.set(p)
	return p
}

func (w *fakeCluster) set(p *Pod) {
	was := w.pods[p.Namespace][p.Name]
	if w.pods[p.Namespace] == nil {
		w.pods[p.Namespace] = map[string]*Pod{}
	}
	w.pods[p.Namespace][p.Name] = p
	w.index.SetPod(was, p)
}

func (w *fakeCluster) remove(namespace, name string) {
	was := w.pods[namespace][name]
	delete(w.pods[namespace], name)
	w.index.SetPod(was, nil)
}

// local has pods of the cluster run on the node, with the addresses that the cluster shows.
func (w *fakeCluster) local(pods ...*Pod) {
	for _, p := range pods {
		l := Local{NamespacedName: p.NamespacedName, UID: p.UID, Addresses: p.Addresses}
		for _, a := range p.Addresses {
			l.Ways = append(l.Ways, wayOf(a.String()))
		}
		w.index.SetLocal(l)
	}
}

func addrs(texts ...string) []netip.Addr {
	var all []netip.Addr
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

// passes says whether the node forwards a new connection of a pod.
func passes(t *testing.T, rs *ruleset.Ruleset, from, to string, protocol ruleset.Protocol, port uint16) bool {
	t.Helper()
	if err := rulesettest.Check(rs); err != nil {
		t.Fatal(err)
	}
	d := ruleset.Walk(rs, ruleset.Forward, ruleset.Packet{
		Source: netip.MustParseAddr(from), Destination: netip.MustParseAddr(to), Protocol: protocol, Port: port, InInterface: wayOf(from), OutInterface: wayOf(to),
	})
	return d.Verdict == ruleset.Accept
}
