// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/ipamtest"
)

var update = flag.Bool("update", false, "write the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s: -want +got:\n%s", file, diff)
	}
}

// addresses are one in each state, of two pools.
func addresses() *ipamtest.Server {
	pool := func(name, subnet, ranges string) *v1alpha1.IPPool {
		return &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.IPPoolSpec{Subnet: subnet, Ranges: []string{ranges}}}
	}
	server := ipamtest.NewServer(pool("web", "10.0.70.0/24", "10.0.70.8-10.0.70.40"), pool("six", "2001:db8:70::/64", "2001:db8:70::1:0/112"))
	now := metav1.NewTime(time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC))
	put := func(address, pool, kind, namespace, owner, pod string, change func(*v1alpha1.FloatingIP)) {
		ip := &v1alpha1.FloatingIP{Spec: v1alpha1.FloatingIPSpec{Address: address, Pool: pool, Since: &now}}
		ip.Name = v1alpha1.NameOf(netip.MustParseAddr(address))
		if kind != "" {
			ip.Spec.Owner = &v1alpha1.Owner{APIVersion: "apps/v1", Kind: kind, Namespace: namespace, NamespaceUID: "n", Name: owner, UID: "u"}
		}
		if pod != "" {
			ip.Spec.Pod, ip.Spec.Node = &v1alpha1.PodReference{Name: pod, UID: "p"}, "node1"
			ip.Spec.Network = &v1alpha1.Network{Subnet: "10.0.70.0/24"}
		}
		if change != nil {
			change(ip)
		}
		server.Put(ip)
	}
	put("10.0.70.10", "web", "StatefulSet", "shop", "web", "", nil)
	put("10.0.70.8", "web", "StatefulSet", "shop", "web", "web-0", nil)
	put("10.0.70.9", "web", "StatefulSet", "shop", "web", "web-7", nil)
	put("10.0.70.11", "web", "Deployment", "ads", "banner", "banner-5d8f9-x2x4z", nil)
	put("10.0.70.12", "web", "IPClaim", "ads", "front", "", nil)
	put("10.0.70.13", "web", "", "", "", "", func(ip *v1alpha1.FloatingIP) { ip.Spec.ReleasedAt = &now })
	reserved := func(reason string) func(*v1alpha1.FloatingIP) {
		return func(ip *v1alpha1.FloatingIP) {
			ip.Spec.Reserved, ip.Annotations = true, map[string]string{v1alpha1.AnnotationReason: reason}
		}
	}
	put("10.0.70.14", "web", "", "", "", "", reserved("VRRP, ticket 4711"))
	put("10.0.70.15", "web", "", "", "", "", reserved("in the inventory: NetBox"))
	put("2001:db8:70::1:8", "six", "StatefulSet", "shop", "web", "web-0", func(ip *v1alpha1.FloatingIP) { ip.Spec.Network = nil })
	return server
}

// The formats that NetBox imports, and what the output is if it has a list already.
func TestNetBox(t *testing.T) {
	for _, test := range []struct {
		golden        string
		o             exporting
		found, stderr string
	}{
		{"netbox.csv", exporting{format: "netbox"}, "", ""},
		{"netbox.json", exporting{format: "netbox-json"}, "", ""},
		{"netbox-changes.csv", exporting{format: "netbox", file: "testdata/netbox-list.csv"}, "found",
			"10.0.70.11: NetBox has it from others, with id 33 and the description \"old printer of Ann\": it is left out\n"},
		{"netbox-changes.json", exporting{format: "netbox-json", file: "testdata/netbox-list.csv", pool: "web"}, "found",
			"10.0.70.11: NetBox has it from others, with id 33 and the description \"old printer of Ann\": it is left out\n"},
		{"netbox-changes-six.csv", exporting{format: "netbox", file: "testdata/netbox-list.csv", pool: "six"}, "", ""},
	} {
		streams, _, out, errOut := genericiooptions.NewTestIOStreams()
		server := addresses()
		call := &command.Call{IOStreams: streams, Berth: server.Client(), Metadata: metadata.NewForConfigOrDie(&rest.Config{Host: "http://ipam.test", Transport: server})}
		err := test.o.prepare(call)
		if err == nil {
			err = test.o.run(t.Context(), call)
		}
		var findings answer.FindingsError
		if found := errors.As(err, &findings); found != (test.found != "") || err != nil && !found {
			t.Fatalf("%s: %v", test.golden, err)
		}
		golden(t, test.golden, out.String())
		if errOut.String() != test.stderr {
			t.Errorf("%s: stderr\n%s", test.golden, errOut)
		}
	}
}

func TestExportUsage(t *testing.T) {
	for want, o := range map[string]exporting{
		"-o xlsx: there is no such format: use csv, json, netbox or netbox-json": {format: "xlsx"},
		"--netbox is for -o netbox and -o netbox-json":                           {format: "csv", file: "list.csv"},
		"read NetBox's list /nowhere: open /nowhere: no such file or directory":  {format: "netbox", file: "/nowhere"},
		"read NetBox's list testdata: read testdata: is a directory":             {format: "netbox", file: "testdata"},
	} {
		if err := o.prepare(&command.Call{}); err == nil || err.Error() != want {
			t.Errorf("%+v: %v, want %s", o, err, want)
		}
	}
}
