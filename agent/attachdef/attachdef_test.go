// SPDX-License-Identifier: Apache-2.0

package attachdef

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// cluster has definitions by namespace/name.
type cluster map[string]*nadv1.NetworkAttachmentDefinition

func (c cluster) get(_ context.Context, namespace, name string) (*nadv1.NetworkAttachmentDefinition, error) {
	if d := c[namespace+"/"+name]; d != nil {
		return d, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Group: "k8s.cni.cncf.io", Resource: "network-attachment-definitions"}, name)
}

func definition(config string, annotations map[string]string) *nadv1.NetworkAttachmentDefinition {
	return &nadv1.NetworkAttachmentDefinition{ObjectMeta: metav1.ObjectMeta{Annotations: annotations}, Spec: nadv1.NetworkAttachmentDefinitionSpec{Config: config}}
}

func testReader(shared ...string) *Reader {
	c := cluster{
		"app/storage":    definition(`{"type":"macvlan"}`, nil),
		"app/on-disk":    definition("", nil),
		"shared/backup":  definition(`{"plugins":[]}`, nil),
		"private/secret": definition(`{"type":"berth-veth"}`, nil),
		"app/device":     definition(`{}`, map[string]string{annotationResource: "intel.com/vf"}),
	}
	return &Reader{Get: c.get, Shared: append(shared, "app")}
}

func TestNetworks(t *testing.T) {
	storage := Network{Definition: "app/storage", Name: "storage", Config: json.RawMessage(`{"type":"macvlan"}`)}
	at := func(n Network, ifName string) Network { n.IfName = ifName; return n }
	withRoute := func(n Network) Network {
		n.DefaultRoute = []netip.Addr{netip.MustParseAddr("10.1.0.1"), netip.MustParseAddr("2001:db8::1")}
		return n
	}
	full := at(storage, "data0")
	full.IPs = []string{"10.1.0.5/24"}
	full.Capabilities = map[string]json.RawMessage{
		"ips": json.RawMessage(`["10.1.0.5/24"]`), "mac": json.RawMessage(`"02:00:00:00:00:05"`),
		"portMappings": json.RawMessage(`[{"hostPort":80,"containerPort":8080,"protocol":"tcp"}]`),
		"bandwidth":    json.RawMessage(`{"ingressRate":1000,"ingressBurst":2000,"egressRate":0,"egressBurst":0}`),
	}
	full.Args = map[string]json.RawMessage{"queues": json.RawMessage(`4`)}
	for name, c := range map[string]struct {
		annotation string
		want       []Network
	}{
		"none":  {"", nil},
		"short": {"storage", []Network{at(storage, "net1")}},
		"several, with an interface and a namespace": {" storage , shared/backup@bak0,app/on-disk", []Network{
			at(storage, "net1"), {Definition: "shared/backup", Name: "backup", Config: json.RawMessage(`{"plugins":[]}`), IfName: "bak0"},
			{Definition: "app/on-disk", Name: "on-disk", Config: json.RawMessage{}, IfName: "net3"},
		}},
		"default route":                          {`[{"name":"storage","default-route":["10.1.0.1","2001:db8::1"]},{"name":"storage"}]`, []Network{withRoute(at(storage, "net1")), at(storage, "net2")}},
		"twice the same":                         {"storage,storage", []Network{at(storage, "net1"), at(storage, "net2")}},
		"a default name is taken by a later one": {"storage,storage@net1", []Network{at(storage, "net3"), at(storage, "net1")}},
		"JSON": {`[{"name":"storage","interface":"data0","ips":["10.1.0.5/24"],"mac":"02:00:00:00:00:05","cni-args":{"queues":4},
			"portMappings":[{"hostPort":80,"containerPort":8080,"protocol":"tcp"}],"bandwidth":{"ingressRate":1000,"ingressBurst":2000}}]`, []Network{full}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := testReader("shared").Networks(t.Context(), "app", c.annotation, "eth0")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got, cmp.Comparer(func(x, y netip.Addr) bool { return x == y })); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A pod gets no networks at all where one cannot be served: otherwise it would run without one that
// it asks for.
func TestNetworksRefused(t *testing.T) {
	for name, c := range map[string]struct {
		annotation string
		is         error
		text       string
	}{
		"no such":             {"storage,missing", ErrNoDefinition, "app/missing"},
		"of another tenant":   {"private/secret", ErrNoDefinition, "may not use the networks of namespace private"},
		"bad JSON":            {`[{"name":`, ErrAnnotation, "unexpected end"},
		"JSON with null":      {`[null]`, ErrAnnotation, "null"},
		"JSON without a name": {`[{"interface":"a"}]`, ErrNoDefinition, "app/"},
		"bad name":            {"storage@@", ErrAnnotation, ""},
		"interface taken":     {"storage@eth0", ErrAnnotation, "has an interface eth0 already"},
		"loopback":            {"storage@lo", ErrAnnotation, "lo already"},
		"interface twice":     {"storage@a,storage@a", ErrAnnotation, "has an interface a already"},
		"interface too long":  {"storage@abcdefghijklmnop", ErrAnnotation, "abcdefghijklmnop"},
		"bad address":         {`[{"name":"storage","ips":["10.0.0.300"]}]`, ErrAnnotation, "10.0.0.300"},
		"bad MAC":             {`[{"name":"storage","mac":"zz"}]`, ErrAnnotation, "zz"},
		"two default routes":  {`[{"name":"storage","default-route":["10.0.0.1"]},{"name":"storage","default-route":["2001:db8::1"]}]`, ErrAnnotation, "both have default-route"},
		"two gateways":        {`[{"name":"storage","default-route":["10.0.0.1","10.0.0.2"]}]`, ErrAnnotation, "more than one gateway"},
		"not a gateway":       {`[{"name":"storage","default-route":["0.0.0.0"]}]`, ErrAnnotation, "not the address of a gateway"},
		"an IPAM claim":       {`[{"name":"storage","ipam-claim-reference":"c"}]`, ErrAnnotation, "ipam-claim-reference"},
		"a device":            {"device", ErrAnnotation, "intel.com/vf"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := testReader("shared").Networks(t.Context(), "app", c.annotation, "eth0")
			if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.text) || got != nil {
				t.Errorf("Networks() = %v, %v, want %q with %q", got, err, c.is, c.text)
			}
		})
	}
	all := testReader(AllNamespaces)
	if _, err := all.Networks(t.Context(), "app", "private/secret", "eth0"); !errors.Is(err, ErrNotAllowed) {
		t.Errorf("with all namespaces shared, and no plugin allowed: %v", err)
	}
	all.Allowed = Allowed{"berth-veth"}
	if _, err := all.Networks(t.Context(), "app", "private/secret", "eth0"); err != nil {
		t.Errorf("with all namespaces shared: %v", err)
	}
}

func TestStatus(t *testing.T) {
	got, err := Status([]Attached{
		{Network: "berth-floating", Result: json.RawMessage(`{"cniVersion":"1.1.0","interfaces":[{"name":"bth0","mac":"0a:be:00:00:00:01"},{"name":"eth0","mac":"02:be:0a:00:46:05","mtu":1500,"sandbox":"/run/netns/c"}],
			"ips":[{"interface":1,"address":"10.0.70.5/32","gateway":"169.254.1.1"}],"routes":[{"dst":"0.0.0.0/0","gw":"169.254.1.1"}]}`)},
		{Network: "app/storage", Result: json.RawMessage(`{"cniVersion":"0.3.1","interfaces":[{"name":"net1","mac":"02:00:00:00:00:05","sandbox":"/run/netns/c"}],"ips":[{"version":"4","interface":0,"address":"10.1.0.5/24"}]}`)},
		{Network: "app/bare", Result: json.RawMessage(`{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.2.0.5/24"}]}`)},
	})
	if err != nil {
		t.Fatal(err)
	}
	var status []nadv1.NetworkStatus
	if err := json.Unmarshal([]byte(got), &status); err != nil {
		t.Fatal(err)
	}
	none := nadv1.DNS{}
	want := []nadv1.NetworkStatus{
		{Name: "berth-floating", Interface: "eth0", IPs: []string{"10.0.70.5"}, Mac: "02:be:0a:00:46:05", Mtu: 1500, Default: true, DNS: none, Gateway: []string{"169.254.1.1"}},
		{Name: "app/storage", Interface: "net1", IPs: []string{"10.1.0.5"}, Mac: "02:00:00:00:00:05", DNS: none},
		{Name: "app/bare", IPs: []string{"10.2.0.5"}, DNS: none},
	}
	if diff := cmp.Diff(want, status); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := Status([]Attached{{Network: "n", Result: json.RawMessage(`{"cniVersion":"9.0.0"}`)}}); err == nil {
		t.Error("a result of an unknown version makes a status")
	}
}

// A plugin may give a container several interfaces. Of the pod's default network the one with
// the gateway is the default one.
func TestStatusOfSeveralInterfaces(t *testing.T) {
	result := func(ips string) json.RawMessage {
		return json.RawMessage(`{"cniVersion":"1.0.0","interfaces":[{"name":"br0"},{"name":"eth0","sandbox":"/run/netns/c"},{"name":"eth1","sandbox":"/run/netns/c"}],
			"ips":[` + ips + `],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0","gw":"fd00::1"},{"dst":"10.9.0.0/16","gw":"10.0.0.9"}],"dns":{"domain":"example"}}`)
	}
	dns, gateway := nadv1.DNS{Domain: "example"}, []string{"fd00::1"}
	for name, c := range map[string]struct {
		ips   string
		first bool
		want  []nadv1.NetworkStatus
	}{
		"gateway of the second": {`{"interface":1,"address":"10.0.0.5/24"},{"interface":2,"address":"fd00::5/64","gateway":"fd00::1"},{"address":"10.0.0.6/24"},{"interface":0,"address":"10.0.0.7/24"}`, true, []nadv1.NetworkStatus{
			{Name: "n", Interface: "eth0", IPs: []string{"10.0.0.5"}, DNS: dns, Gateway: gateway},
			{Name: "n", Interface: "eth1", IPs: []string{"fd00::5", "10.0.0.6"}, Default: true, DNS: dns, Gateway: gateway},
		}},
		"no gateway": {`{"interface":1,"address":"10.0.0.5/24"}`, true, []nadv1.NetworkStatus{
			{Name: "n", Interface: "eth0", IPs: []string{"10.0.0.5"}, Default: true, DNS: dns, Gateway: gateway},
			{Name: "n", Interface: "eth1", DNS: dns, Gateway: gateway},
		}},
		"not the default network": {`{"interface":1,"address":"10.0.0.5/24","gateway":"10.0.0.1"}`, false, []nadv1.NetworkStatus{
			{Name: "n", Interface: "eth0", IPs: []string{"10.0.0.5"}, DNS: dns, Gateway: gateway},
			{Name: "n", Interface: "eth1", DNS: dns, Gateway: gateway},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			networks := []Attached{{Network: "n", Result: result(c.ips)}}
			if !c.first {
				networks = append([]Attached{{Network: "first", Result: json.RawMessage(`{"cniVersion":"1.0.0"}`)}}, networks...)
				c.want = append([]nadv1.NetworkStatus{{Name: "first", Default: true}}, c.want...)
			}
			got, err := Status(networks)
			if err != nil {
				t.Fatal(err)
			}
			var status []nadv1.NetworkStatus
			if err := json.Unmarshal([]byte(got), &status); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, status); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func FuzzNetworks(f *testing.F) {
	for _, annotation := range []string{"storage,shared/backup@a", `[{"name":"storage","ips":["10.0.0.1"]}]`, ",", `[null]`, `"`} {
		f.Add(annotation)
	}
	f.Fuzz(func(t *testing.T, annotation string) {
		networks, err := testReader().Networks(t.Context(), "app", annotation, "eth0")
		seen := map[string]bool{"eth0": true, "lo": true}
		for _, n := range networks {
			if n.IfName == "" || seen[n.IfName] || err != nil {
				t.Errorf("%q: %+v, %v", annotation, networks, err)
			}
			seen[n.IfName] = true
		}
	})
}
