// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/agent/policy/ruleset/rulesettest"
)

var update = flag.Bool("update", false, "writes the rulesets of testdata anew")

// Files of an archive. The last two are written by -update; the packets are not, so that each case
// states its own expectations.
const (
	fileObjects  = "objects.yaml"
	filePackets  = "packets.txt"
	fileProblems = "problems.txt"
	fileNode     = "node.nft"
)

// annotationDirect names the interfaces of a pod that do not pass the node.
const annotationDirect = "test/direct"

// annotationByWire says that the node has no other way to such a pod.
const annotationByWire = "test/by-wire"

// Each archive has objects, packets with their expected verdicts, and the rulesets. Its pods of
// node "node" are local.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) { golden(t, file) })
	}
}

func golden(t *testing.T, file string) {
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	in := map[string]string{}
	for _, f := range archive.Files {
		in[f.Name] = string(f.Data)
	}
	w, locals := load(t, in[fileObjects])
	node := w.index.Node()
	out := []txtar.File{{Name: fileObjects, Data: []byte(in[fileObjects])}, {Name: filePackets, Data: []byte(in[filePackets])}}
	if problems := w.index.Problems(); len(problems) > 0 {
		var b bytes.Buffer
		for _, p := range problems {
			fmt.Fprintf(&b, "%s %s: %s\n", p.Kind, p.NamespacedName, p.Text)
		}
		out = append(out, txtar.File{Name: fileProblems, Data: b.Bytes()})
	}
	rulesets := map[string]*ruleset.Ruleset{fileNode: node}
	out = append(out, txtar.File{Name: fileNode, Data: []byte(rulesettest.Text(node))})
	for _, l := range locals {
		if len(l.Direct) > 0 {
			name := strings.ReplaceAll(l.String(), "/", "-") + ".nft"
			rulesets[name] = w.index.Pod(l.UID)
			out = append(out, txtar.File{Name: name, Data: []byte(rulesettest.Text(rulesets[name]))})
		}
	}
	for name, rs := range rulesets {
		if err := rulesettest.Check(rs); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if t.Failed() {
		return
	}
	packets(t, in[filePackets], w, rulesets)
	got := txtar.Format(&txtar.Archive{Comment: archive.Comment, Files: out})
	if want := txtar.Format(archive); !bytes.Equal(got, want) {
		if *update {
			if err := os.WriteFile(file, got, 0o644); err != nil {
				t.Fatal(err)
			}
			return
		}
		t.Errorf("%s does not match the ruleset of its policies (go test -update writes it):\n%s", file, got)
	}
}

// load reads the objects of a cluster, in the order of the file.
func load(t *testing.T, text string) (*fakeCluster, []Local) {
	t.Helper()
	w := newFakeCluster()
	var locals []Local
	reader := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return w, locals
		}
		if err != nil {
			t.Fatal(err)
		}
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(document, &kind); err != nil {
			t.Fatal(err)
		}
		into := func(object any) {
			t.Helper()
			if err := yaml.UnmarshalStrict(document, object); err != nil {
				t.Fatalf("%v in\n%s", err, document)
			}
		}
		switch kind.Kind {
		case "Namespace":
			var n corev1.Namespace
			into(&n)
			w.namespace(n.Name, n.Labels)
		case "Pod":
			var p corev1.Pod
			into(&p)
			if pod := podOf(&p); pod != nil {
				w.set(pod)
				if p.Spec.NodeName == "node" {
					l := Local{NamespacedName: pod.NamespacedName, UID: pod.UID, Addresses: pod.Addresses}
					if direct := p.Annotations[annotationDirect]; direct != "" {
						l.Direct = strings.Split(direct, ",")
						if p.Annotations[annotationByWire] != "" {
							l.ByWire = pod.Addresses
						}
					}
					l.Ways = []string{wayOf(pod.Name)}
					w.index.SetLocal(l)
					locals = append(locals, l)
				}
			}
		case "Node":
			var n corev1.Node
			into(&n)
			var own []netip.Addr
			for _, a := range n.Status.Addresses {
				own = append(own, netip.MustParseAddr(a.Address))
			}
			w.index.SetNodeAddresses(own, nil)
		case KindNetworkPolicy:
			var p networkingv1.NetworkPolicy
			into(&p)
			w.index.SetNetworkPolicy(&p)
		case KindClusterNetworkPolicy:
			var p policyv1alpha2.ClusterNetworkPolicy
			into(&p)
			w.index.SetClusterPolicy(&p)
		default:
			t.Fatalf("kind %q in\n%s", kind.Kind, document)
		}
	}
}

// wayOf is the node's link to a pod.
func wayOf(pod string) string { return "to-" + pod }

// podOf is a pod as a Cluster has it; nil if it has it not.
func podOf(p *corev1.Pod) *Pod {
	if p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return nil
	}
	pod := &Pod{NamespacedName: types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, UID: types.UID(p.Namespace + "/" + p.Name), Labels: p.Labels}
	for _, ip := range p.Status.PodIPs {
		pod.Addresses = append(pod.Addresses, netip.MustParseAddr(ip.IP))
	}
	for _, c := range p.Spec.Containers {
		for _, port := range c.Ports {
			if port.Name != "" {
				pod.Ports = append(pod.Ports, NamedPort{Name: port.Name, Protocol: port.Protocol, Port: uint16(port.ContainerPort)})
			}
		}
	}
	return pod
}

// packets walks packets: "accept|drop [RULESET input|output INTERFACE] FROM TO PROTOCOL[/PORT]",
// where FROM and TO are addresses or names of pods, which stand for their first one, or with /6 for
// their IPv6 one.
func packets(t *testing.T, text string, w *fakeCluster, rulesets map[string]*ruleset.Ruleset) {
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), "#")
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		rs, hook := rulesets[fileNode], ruleset.Forward
		var p ruleset.Packet
		if len(fields) == 7 {
			rs = rulesets[fields[1]]
			if hook = ruleset.Input; fields[2] == "output" {
				hook, p.OutInterface = ruleset.Output, fields[3]
			} else {
				p.InInterface = fields[3]
			}
			fields = slices.Delete(fields, 1, 4)
		}
		if len(fields) != 4 || rs == nil {
			t.Fatalf("packet %q", line)
		}
		p.Source, p.Destination = w.address(t, fields[1]), w.address(t, fields[2])
		protocol, port, _ := strings.Cut(fields[3], "/")
		p.Protocol = map[string]ruleset.Protocol{"tcp": ruleset.TCP, "udp": ruleset.UDP, "sctp": ruleset.SCTP, "icmp": 1}[protocol]
		if port != "" {
			number, err := strconv.ParseUint(port, 10, 16)
			if err != nil {
				t.Fatal(err)
			}
			p.Port = uint16(number)
		}
		if _, pod, isPod := strings.Cut(fields[1], "/"); isPod && hook == ruleset.Forward {
			p.InInterface = wayOf(strings.TrimSuffix(pod, "/6"))
		}
		if _, pod, isPod := strings.Cut(fields[2], "/"); isPod && hook == ruleset.Forward {
			p.OutInterface = wayOf(strings.TrimSuffix(pod, "/6"))
		}
		if d := ruleset.Walk(rs, hook, p); d.Verdict.String() != fields[0] {
			t.Errorf("%s: %s by %v", line, d.Verdict, d.Origin())
		}
	}
}

func (w *fakeCluster) address(t *testing.T, text string) netip.Addr {
	t.Helper()
	if a, err := netip.ParseAddr(text); err == nil {
		return a
	}
	text, six := strings.CutSuffix(text, "/6")
	namespace, name, _ := strings.Cut(text, "/")
	pod := w.pods[namespace][name]
	if pod == nil {
		t.Fatalf("no pod %q", text)
	}
	for _, a := range pod.Addresses {
		if a.Is6() == six {
			return a
		}
	}
	t.Fatalf("pod %q has no such address", text)
	return netip.Addr{}
}
