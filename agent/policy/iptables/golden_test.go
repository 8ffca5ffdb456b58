// SPDX-License-Identifier: Apache-2.0

package iptables_test

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"flag"
	"io"
	"iter"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/agent/policy"
	"github.com/berth-dev/berth/agent/policy/iptables"
	"github.com/berth-dev/berth/agent/policy/iptables/iptablestest"
	"github.com/berth-dev/berth/agent/policy/ruleset"
)

var update = flag.Bool("update", false, "writes the texts of testdata anew")

// Files of an archive. The texts are written by -update: of the node, and of the pod with direct
// interfaces.
const (
	filePods     = "pods.yaml"
	filePolicies = "policies.yaml"
)

// Each archive has pods, policies, and the texts by which these come into the kernel.
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
	old, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	archive := txtar.Parse(old)
	archive.Files = slices.DeleteFunc(archive.Files, func(f txtar.File) bool { return f.Name != filePods && f.Name != filePolicies })
	contents := map[string][]byte{}
	for _, f := range archive.Files {
		contents[f.Name] = f.Data
	}
	index, direct := compile(t, contents)
	write := func(name string, rs *ruleset.Ruleset) {
		t.Helper()
		// Nobody needs a text that the interpreter of tests does not read.
		if _, err := iptablestest.Of(rs); err != nil {
			t.Fatal(err)
		}
		text, err := iptables.TextOf(rs)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []struct{ program, text string }{{"ipset", inOrder(text.Sets)}, {"iptables", text.Rules[0]}, {"ip6tables", text.Rules[1]}} {
			archive.Files = append(archive.Files, txtar.File{Name: name + "." + part.program, Data: []byte(part.text)})
		}
	}
	write("node", index.Node())
	for _, uid := range direct {
		write(string(uid), index.Pod(uid))
	}
	now := txtar.Format(archive)
	if *update {
		if err := os.WriteFile(file, now, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := gocmp.Diff(strings.Split(string(old), "\n"), strings.Split(string(now), "\n")); diff != "" {
		t.Errorf("%s does not have the text of its policies (go test -update writes it):\n%s", file, diff)
	}
}

// inOrder sorts the commands for each set, whose elements are in no order.
func inOrder(sets string) string {
	lines := slices.Collect(strings.Lines(sets))
	slices.SortStableFunc(lines, func(a, b string) int {
		return cmp.Or(cmp.Compare(strings.Fields(a)[1], strings.Fields(b)[1]), -cmp.Compare(strings.Fields(a)[0], strings.Fields(b)[0]), cmp.Compare(a, b))
	})
	return strings.Join(lines, "")
}

// podFile is a pod of an archive.
type podFile struct {
	Namespace, Name string
	Labels          map[string]string
	Addresses       []netip.Addr
	Ports           []policy.NamedPort
	// Elsewhere says that it is a pod of another node.
	Elsewhere bool
	Ways      []string
	Shared    bool
	Direct    []string
}

// compile returns an index of an archive, and the pods with direct interfaces.
func compile(t *testing.T, contents map[string][]byte) (index *policy.Index, direct []types.UID) {
	t.Helper()
	var pods []podFile
	if err := yaml.UnmarshalStrict(contents[filePods], &pods); err != nil {
		t.Fatal(err)
	}
	c := cluster{}
	for _, p := range pods {
		c[p.Namespace] = append(c[p.Namespace], &policy.Pod{
			NamespacedName: types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, UID: types.UID(p.Namespace + "-" + p.Name), Labels: p.Labels, Addresses: p.Addresses, Ports: p.Ports,
		})
	}
	index = policy.NewIndex(c)
	for name, labels := range c.Namespaces() {
		index.SetNamespace(name, labels)
	}
	for _, p := range pods {
		name := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
		index.SetPod(nil, c.Pod(name))
		if p.Elsewhere {
			continue
		}
		l := policy.Local{NamespacedName: name, UID: c.Pod(name).UID, Addresses: p.Addresses, Ways: p.Ways, Shared: p.Shared, Direct: p.Direct}
		if index.SetLocal(l); len(l.Direct) > 0 {
			direct = append(direct, l.UID)
		}
	}
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(contents[filePolicies])))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return index, direct
		}
		var kind metav1.TypeMeta
		if err := errors.Join(err, yaml.Unmarshal(document, &kind)); err != nil {
			t.Fatal(err)
		}
		var network networkingv1.NetworkPolicy
		var whole policyv1alpha2.ClusterNetworkPolicy
		if kind.Kind == policy.KindNetworkPolicy {
			err = yaml.UnmarshalStrict(document, &network)
			index.SetNetworkPolicy(&network)
		} else {
			err = yaml.UnmarshalStrict(document, &whole)
			index.SetClusterPolicy(&whole)
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
	}
}

// cluster is pods by their namespaces, each of which has a label with its name.
type cluster map[string][]*policy.Pod

func (c cluster) Namespaces() iter.Seq2[string, map[string]string] {
	return func(yield func(string, map[string]string) bool) {
		for name := range c {
			if !yield(name, map[string]string{"team": name}) {
				return
			}
		}
	}
}

func (c cluster) Pods(namespace string) iter.Seq[*policy.Pod] { return slices.Values(c[namespace]) }

func (c cluster) Pod(name types.NamespacedName) *policy.Pod {
	for _, p := range c[name.Namespace] {
		if p.NamespacedName == name {
			return p
		}
	}
	return nil
}
