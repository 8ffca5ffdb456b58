// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/transfer/galaxyimport"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/galaxy"
)

var update = flag.Bool("update", false, "write the golden files")

// golden compares with testdata/name.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("not as in %s (-want +got):\n%s", path, diff)
	}
}

// somePod returns a live pod in namespace shop that asks Galaxy for an address.
func somePod(name, uid, kind, owner string) *v1.Pod {
	yes := true
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, UID: types.UID(uid),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: owner, UID: types.UID("uid-" + owner), Controller: &yes}},
		},
		Spec: v1.PodSpec{NodeName: "node1", Containers: []v1.Container{{Resources: v1.ResourceRequirements{
			Requests: v1.ResourceList{galaxy.ResourceENIIP: resource.MustParse("1")},
		}}}},
		Status: v1.PodStatus{Phase: v1.PodRunning},
	}
}

// galaxyPlan makes a plan of testdata/galaxy.yaml in a cluster with one Berth object.
func galaxyPlan(t *testing.T) *galaxyimport.Plan {
	t.Helper()
	given, err := readFiles(&command.Call{}, []string{"testdata/galaxy.yaml"}, "floatingips")
	if err != nil {
		t.Fatal(err)
	}
	subnets, err := galaxy.ParseConfig(given.config)
	if err != nil {
		t.Fatal(err)
	}
	plan, err := galaxyimport.Make(&galaxyimport.Input{
		Subnets: subnets, IPs: given.ips, Pools: given.pools,
		Pods: []*v1.Pod{
			somePod("web-0", "uid-web-0", "StatefulSet", "web"),
			somePod("gate-1-x", "uid-gate", "ReplicaSet", "gate-1"),
		},
		Workloads: []galaxyimport.Workload{{
			GroupVersionKind: schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "StatefulSet"},
			Namespace:        "shop", Name: "web", UID: "uid-web",
		}},
		ExistingIPs: []*v1alpha1.FloatingIP{{
			ObjectMeta: metav1.ObjectMeta{Name: "10.0.70.4"},
			Spec:       v1alpha1.FloatingIPSpec{Address: "10.0.70.4", Reserved: true},
		}},
		Options: galaxyimport.Options{PoolPrefix: "galaxy-"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

func TestPrintPlan(t *testing.T) {
	var out bytes.Buffer
	plan := galaxyPlan(t)
	if err := printPlan(&out, plan); err != nil {
		t.Fatal(err)
	}
	printSummary(&out, plan, false, fromGalaxy(plan))
	golden(t, "plan.txt", out.String())
}

func TestPrintObjects(t *testing.T) {
	for _, format := range []string{"yaml", "json"} {
		var out bytes.Buffer
		if err := printObjects(&out, galaxyPlan(t), format); err != nil {
			t.Fatal(err)
		}
		golden(t, "objects."+format, out.String())
	}
}

func stdin(text string) *command.Call {
	return &command.Call{IOStreams: genericiooptions.IOStreams{In: strings.NewReader(text)}}
}

func TestReadFiles(t *testing.T) {
	const pools = `[{"ips":[],"nodeSubnets":[]}]`
	for _, test := range []struct {
		name, text string
		config     string
		ips, pools int
		err        string
	}{
		{name: "configuration", text: pools, config: pools},
		{name: "indented with tabs", text: "[\n\t{\n\t\t\"ips\": []}]\n", config: "[\n\t{\n\t\t\"ips\": []}]"},
		{name: "configuration in YAML", text: "# fixed\n- nodeSubnets: []\n  ips: []\n", config: pools},
		{name: "process configuration", text: `{"schedule_plugin":{"floatingips":` + pools + `}}`, config: `{"schedule_plugin":{"floatingips":` + pools + `}}`},
		{name: "ConfigMap", text: "apiVersion: v1\nkind: ConfigMap\ndata:\n  floatingips: '[]'\n", config: "[]"},
		{name: "one object", text: "# comment\n---\napiVersion: galaxy.k8s.io/v1alpha1\nkind: FloatingIP\nmetadata: {name: 10.0.0.1}\nspec: {key: a, policy: 1}\n", ips: 1},
		{name: "typed list", text: "apiVersion: galaxy.k8s.io/v1alpha1\nkind: PoolList\nitems: [{apiVersion: galaxy.k8s.io/v1alpha1, kind: Pool, metadata: {name: a}, size: 2}]\n", pools: 1},
		{name: "empty", text: ""},
		{name: "another key", text: "apiVersion: v1\nkind: ConfigMap\nmetadata: {namespace: a, name: b}\ndata:\n  pools: '[]'\n", err: `document 1: ConfigMap a/b has no key "floatingips": name it with --configmap-key`},
		{name: "another object", text: "apiVersion: berth.dev/v1alpha1\nkind: FloatingIP\n", err: "document 1: berth.dev/v1alpha1 FloatingIP is not Galaxy's"},
		{name: "another object in a list", text: "kind: List\nitems: [{kind: Pod, apiVersion: v1}]\n", err: "document 1: items[0]: v1 Pod is not Galaxy's"},
		{name: "words", text: "hello", err: "document 1: neither a Kubernetes object nor Galaxy's pool configuration"},
		{name: "bad object", text: "apiVersion: galaxy.k8s.io/v1alpha1\nkind: FloatingIP\nspec: {policy: never}\n", err: "document 1: parse a FloatingIP of Galaxy's"},
		{name: "bad YAML", text: "a: [", err: "document 1: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			given, err := readFiles(stdin(test.text), []string{"-"}, "floatingips")
			if test.err != "" {
				if err == nil || !strings.HasPrefix(err.Error(), "-: "+test.err) {
					t.Fatalf("error is %v, want one that begins with %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if string(given.config) != test.config || len(given.ips) != test.ips || len(given.pools) != test.pools || given.hasIPs != (test.ips > 0) || given.hasPools != (test.pools > 0) {
				t.Errorf("got configuration %q, %d addresses, %d pools", given.config, len(given.ips), len(given.pools))
			}
		})
	}
	t.Run("two configurations", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "pools.json")
		if err := os.WriteFile(path, []byte(pools), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readFiles(stdin(pools), []string{path, "-"}, ""); err == nil || !strings.Contains(err.Error(), "a second pool configuration") {
			t.Errorf("error is %v", err)
		}
	})
}

func FuzzReadFile(f *testing.F) {
	text, err := os.ReadFile("testdata/galaxy.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte("[]"))
	f.Add([]byte("kind: List\nitems: [{}]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		var first, second given
		first.configKey, second.configKey = "floatingips", "floatingips"
		errFirst, errSecond := first.addFile(text), second.addFile(text)
		if (errFirst == nil) != (errSecond == nil) || len(first.ips) != len(second.ips) || len(first.ips) > 0 && !first.hasIPs {
			t.Fatalf("%q is read as %+v, %v and as %+v, %v", text, first, errFirst, second, errSecond)
		}
	})
}
