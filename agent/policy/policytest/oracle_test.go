// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"net/netip"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/agent/policy"
	"github.com/berth-dev/berth/agent/policy/ruleset"
)

func pod(namespace, name, address string, labels map[string]string, ports ...policy.NamedPort) *policy.Pod {
	return &policy.Pod{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}, Labels: labels, Addresses: []netip.Addr{netip.MustParseAddr(address)}, Ports: ports}
}

// The oracle agrees with the examples in the documents.
func TestOracle(t *testing.T) {
	const (
		web, db, other, outside = "10.0.0.1", "10.0.0.2", "10.0.0.3", "192.0.2.1"
		node                    = "10.9.9.9"
	)
	ingressPeer := func(peer string) string {
		return "{metadata: {name: p, namespace: shop}, spec: {podSelector: {matchLabels: {app: db}}, ingress: [{from: [" + peer + "]}]}}"
	}
	port := func(port string) string {
		return "{metadata: {name: p, namespace: shop}, spec: {podSelector: {}, ingress: [{ports: [" + port + "]}]}}"
	}
	admin := func(spec string) string {
		return "{metadata: {name: a}, spec: {tier: Admin, priority: 5, subject: {namespaces: {}}, " + spec + "}}"
	}
	baseline := func(spec string) string {
		return "{metadata: {name: b}, spec: {tier: Baseline, priority: 5, subject: {namespaces: {}}, " + spec + "}}"
	}
	const isolated = "{metadata: {name: isolated, namespace: shop}, spec: {podSelector: {}}}"
	for name, tc := range map[string]struct {
		network, cluster []string
		from, to         string
		protocol         ruleset.Protocol
		port             uint16
		denied           bool
	}{
		"default":                                  {from: web, to: db},
		"isolated":                                 {network: []string{isolated}, from: web, to: db, denied: true},
		"isolated, from the node":                  {network: []string{isolated}, from: node, to: db},
		"isolated, itself":                         {network: []string{isolated}, from: db, to: db},
		"isolated, another namespace":              {network: []string{isolated}, from: web, to: other},
		"ingress by default, not egress":           {network: []string{isolated}, from: web, to: outside},
		"egress section":                           {network: []string{"{metadata: {namespace: shop}, spec: {podSelector: {}, egress: [{to: [{podSelector: {}}]}]}}"}, from: web, to: outside, denied: true},
		"egress section affects ingress":           {network: []string{"{metadata: {namespace: shop}, spec: {podSelector: {}, egress: [{to: [{podSelector: {}}]}]}}"}, from: outside, to: db, denied: true},
		"egress only":                              {network: []string{"{metadata: {namespace: shop}, spec: {podSelector: {}, policyTypes: [Egress]}}"}, from: outside, to: db},
		"no egress":                                {network: []string{"{metadata: {namespace: shop}, spec: {podSelector: {}, policyTypes: [Egress]}}"}, from: db, to: outside, denied: true},
		"ingress section without type":             {network: []string{"{metadata: {namespace: shop}, spec: {podSelector: {}, ingress: [{}], policyTypes: [Egress]}}"}, from: web, to: outside, denied: true},
		"added up":                                 {network: []string{isolated, ingressPeer("{podSelector: {matchLabels: {app: web}}}")}, from: web, to: db},
		"pods of the own namespace":                {network: []string{ingressPeer("{podSelector: {}}")}, from: other, to: db, denied: true},
		"pods of namespaces":                       {network: []string{ingressPeer("{namespaceSelector: {matchLabels: {team: b}}}")}, from: other, to: db},
		"pods of other namespaces":                 {network: []string{ingressPeer("{namespaceSelector: {matchLabels: {team: b}}}")}, from: web, to: db, denied: true},
		"both selectors":                           {network: []string{ingressPeer("{namespaceSelector: {matchLabels: {team: b}}, podSelector: {matchLabels: {app: web}}}")}, from: other, to: db, denied: true},
		"two elements":                             {network: []string{ingressPeer("{namespaceSelector: {matchLabels: {team: b}}}, {podSelector: {matchLabels: {app: web}}}")}, from: web, to: db},
		"all namespaces are no hosts":              {network: []string{ingressPeer("{namespaceSelector: {}}")}, from: outside, to: db, denied: true},
		"block":                                    {network: []string{ingressPeer("{ipBlock: {cidr: 192.0.2.0/24}}")}, from: outside, to: db},
		"block with exception":                     {network: []string{ingressPeer("{ipBlock: {cidr: 0.0.0.0/0, except: [192.0.2.0/25]}}")}, from: outside, to: db, denied: true},
		"block beside exception":                   {network: []string{ingressPeer("{ipBlock: {cidr: 0.0.0.0/0, except: [192.0.2.128/25]}}")}, from: outside, to: db},
		"block of the other family":                {network: []string{ingressPeer(`{ipBlock: {cidr: "::/0"}}`)}, from: outside, to: db, denied: true},
		"exception of one, allowed by another":     {network: []string{ingressPeer("{ipBlock: {cidr: 0.0.0.0/0, except: [192.0.2.0/25]}}, {ipBlock: {cidr: 192.0.2.1/32}}")}, from: outside, to: db},
		"port":                                     {network: []string{port("{port: 80}")}, from: web, to: db, protocol: 6, port: 80},
		"another port":                             {network: []string{port("{port: 80}")}, from: web, to: db, protocol: 6, port: 81, denied: true},
		"port is TCP by default":                   {network: []string{port("{port: 80}")}, from: web, to: db, protocol: 17, port: 80, denied: true},
		"protocol alone":                           {network: []string{port("{protocol: UDP}")}, from: web, to: db, protocol: 17, port: 9999},
		"ping where ports are listed":              {network: []string{port("{protocol: TCP}")}, from: web, to: db, protocol: 1, denied: true},
		"range":                                    {network: []string{port("{port: 80, endPort: 90}")}, from: web, to: db, protocol: 6, port: 90},
		"behind the range":                         {network: []string{port("{port: 80, endPort: 90}")}, from: web, to: db, protocol: 6, port: 91, denied: true},
		"named port":                               {network: []string{port("{port: sql}")}, from: web, to: db, protocol: 6, port: 5432},
		"named port of another protocol":           {network: []string{port("{port: sql, protocol: UDP}")}, from: web, to: db, protocol: 17, port: 5432, denied: true},
		"named port of the target":                 {network: []string{"{metadata: {namespace: shop}, spec: {podSelector: {}, egress: [{ports: [{port: sql}]}], policyTypes: [Egress]}}"}, from: web, to: db, protocol: 6, port: 5432},
		"named port that the target lacks":         {network: []string{"{metadata: {namespace: shop}, spec: {podSelector: {}, egress: [{ports: [{port: sql}]}], policyTypes: [Egress]}}"}, from: web, to: other, protocol: 6, port: 5432, denied: true},
		"named port outside":                       {network: []string{"{metadata: {namespace: shop}, spec: {podSelector: {}, egress: [{ports: [{port: sql}]}], policyTypes: [Egress]}}"}, from: web, to: outside, protocol: 6, port: 5432, denied: true},
		"admin accepts before":                     {network: []string{isolated}, cluster: []string{admin("ingress: [{action: Accept, from: [{namespaces: {}}]}]")}, from: web, to: db},
		"admin denies before":                      {network: []string{ingressPeer("{podSelector: {}}")}, cluster: []string{admin("ingress: [{action: Deny, from: [{namespaces: {}}]}]")}, from: web, to: db, denied: true},
		"admin passes":                             {network: []string{isolated}, cluster: []string{admin("ingress: [{action: Pass, from: [{namespaces: {}}]}, {action: Accept, from: [{namespaces: {}}]}]")}, from: web, to: db, denied: true},
		"first rule wins":                          {cluster: []string{admin("ingress: [{action: Accept, from: [{namespaces: {}}]}, {action: Deny, from: [{namespaces: {}}]}]")}, from: web, to: db},
		"lower priority wins":                      {cluster: []string{"{metadata: {name: z}, spec: {tier: Admin, priority: 4, subject: {namespaces: {}}, ingress: [{action: Accept, from: [{namespaces: {}}]}]}}", admin("ingress: [{action: Deny, from: [{namespaces: {}}]}]")}, from: web, to: db},
		"baseline denies":                          {cluster: []string{baseline("ingress: [{action: Deny, from: [{namespaces: {}}]}]")}, from: web, to: db, denied: true},
		"baseline passes":                          {cluster: []string{baseline("ingress: [{action: Pass, from: [{namespaces: {}}]}, {action: Deny, from: [{namespaces: {}}]}]")}, from: web, to: db},
		"baseline after a policy that selects":     {network: []string{ingressPeer("{podSelector: {}}")}, cluster: []string{baseline("ingress: [{action: Deny, from: [{namespaces: {}}]}]")}, from: web, to: db},
		"baseline after one of the other way":      {network: []string{isolated}, cluster: []string{baseline("egress: [{action: Deny, to: [{networks: [0.0.0.0/0]}]}]")}, from: db, to: outside, denied: true},
		"from outside is no namespace":             {cluster: []string{baseline("ingress: [{action: Deny, from: [{namespaces: {}}]}]")}, from: outside, to: db},
		"networks have pods, too":                  {cluster: []string{admin("egress: [{action: Deny, to: [{networks: [10.0.0.0/24]}]}]")}, from: web, to: db, denied: true},
		"protocol":                                 {cluster: []string{admin("ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{udp: {destinationPort: {range: {start: 50, end: 60}}}}]}]")}, from: web, to: db, protocol: 17, port: 53, denied: true},
		"another protocol":                         {cluster: []string{admin("ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{udp: {destinationPort: {number: 53}}}]}]")}, from: web, to: db, protocol: 6, port: 53},
		"cluster's named port":                     {cluster: []string{admin("ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{destinationNamedPort: sql}]}]")}, from: web, to: db, protocol: 6, port: 5432, denied: true},
		"cluster's named port, no such pod":        {cluster: []string{admin("ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{destinationNamedPort: sql}]}]")}, from: db, to: web, protocol: 6, port: 5432},
		"subject by pods":                          {cluster: []string{"{metadata: {name: z}, spec: {tier: Admin, priority: 4, subject: {pods: {podSelector: {matchLabels: {app: db}}}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}}"}, from: db, to: web},
		"unknown peer of Accept matches nothing":   {cluster: []string{admin("ingress: [{action: Accept, from: [{namespaces: {}}, {}]}, {action: Deny, from: [{namespaces: {}}]}]")}, from: web, to: db, denied: true},
		"unknown peer of Pass denies":              {cluster: []string{admin("ingress: [{action: Pass, from: [{}], protocols: [{udp: {destinationPort: {number: 53}}}]}]")}, from: outside, to: db, denied: true},
		"accepted one way, isolated the other way": {network: []string{"{metadata: {namespace: shop}, spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Egress]}}"}, cluster: []string{admin("ingress: [{action: Accept, from: [{namespaces: {}}]}]")}, from: web, to: db, denied: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := &World{
				Namespaces: map[string]map[string]string{"shop": {"team": "a"}, "else": {"team": "b"}},
				Pods: []*policy.Pod{
					pod("shop", "web", web, map[string]string{"app": "web"}),
					pod("shop", "db", db, map[string]string{"app": "db"}, policy.NamedPort{Name: "sql", Protocol: "TCP", Port: 5432}),
					pod("else", "other", other, map[string]string{"app": "other"}),
				},
				Node: []netip.Addr{netip.MustParseAddr(node)},
			}
			for _, text := range tc.network {
				w.Network = append(w.Network, parse[networkingv1.NetworkPolicy](t, text))
			}
			for _, text := range tc.cluster {
				w.Cluster = append(w.Cluster, parse[policyv1alpha2.ClusterNetworkPolicy](t, text))
			}
			c := Connection{netip.MustParseAddr(tc.from), netip.MustParseAddr(tc.to), tc.protocol, tc.port}
			allowed := true
			for _, p := range w.Pods {
				if p.Addresses[0] == c.Source {
					allowed = allowed && w.Egress(p, c).Allowed
				}
				if p.Addresses[0] == c.Destination {
					allowed = allowed && w.Ingress(p, c).Allowed
				}
			}
			if allowed == tc.denied {
				t.Errorf("allowed: %v", allowed)
			}
		})
	}
}

func parse[T any](t *testing.T, text string) *T {
	t.Helper()
	object := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), object); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return object
}
