// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/policy"
	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/ipam/seedtest"
)

// tenantsPage tells users which policies to apply.
const tenantsPage = "../../../docs/how-to/tenants.md"

// isolation is the heading of the policy that separates tenants.
const isolation = "Isolate tenants"

// promise says what the policies below a heading of the page let pass. A connection is "SOURCE >
// DESTINATION PROTOCOL/PORT", of pods of pageCluster or addresses; of pods it is tried in both
// families.
type promise struct {
	allows, denies []string
	// isolated connections are allowed by these policies alone, and denied beside the one that
	// separates tenants.
	isolated []string
}

var ports = promise{
	allows: []string{
		"shop/web > shop/db tcp/8080", "shop-test/web > shop/db tcp/8080", "shop/web > shop/db udp/8080", "shop/job > shop/db icmp",
		"192.0.2.1 > shop/db tcp/80", "2001:db8::1 > shop/db tcp/80", "shop/db > shop/web tcp/80",
	},
	denies: []string{
		"shop/web > shop/db tcp/80", "shop/web > shop/db tcp/65535", "shop/job > shop/db tcp/8080",
		"bank/web > shop/db tcp/8080", "bank/db > shop/db tcp/8080", "kube-system/dns > shop/db tcp/1",
	},
	isolated: []string{"bank/web > shop/db udp/8080", "bank/db > shop/db icmp"},
}

// promises are what the page says, by heading.
var promises = map[string]promise{
	isolation: {
		allows: []string{
			"shop/web > shop/db tcp/80", "shop-test/web > shop/db udp/53", "shop/db > shop-test/web icmp", "shop/job > shop/db sctp/80",
			"shop/web > kube-system/dns udp/53", "shop/web > kube-system/dns tcp/53", "bank/web > kube-system/dns tcp/80",
			"192.0.2.1 > shop/web tcp/80", "shop/web > 192.0.2.1 tcp/443", "2001:db8::1 > shop/db icmp", "shop/db > 2001:db8::1 udp/53",
			"bank/web > bank/db tcp/80", "bank/db > bank/web tcp/80",
		},
		denies: []string{
			"bank/web > shop/db tcp/80", "bank/db > shop/web tcp/80", "bank/web > shop-test/web udp/53", "bank/db > shop/db icmp", "bank/web > shop/web sctp/80",
			"shop/web > bank/web tcp/80", "shop/web > bank/db tcp/80", "shop-test/web > bank/web icmp",
			"shop/web > kube-system/dns tcp/80", "shop/web > kube-system/dns icmp", "kube-system/dns > shop/web tcp/53",
		},
	},
	"In, a port from a group": ports,
	"Priorities":              ports,
	"Deny ICMP": {
		allows: []string{
			"shop/web > shop/db tcp/80", "shop-test/web > shop/db udp/53", "shop/job > shop/db sctp/80", "shop/web > shop/db tcp/65535",
			"shop/db > shop/web icmp", "shop/web > shop/job icmp", "192.0.2.1 > shop/db icmp",
		},
		denies:   []string{"shop/web > shop/db icmp", "shop-test/web > shop/db icmp"},
		isolated: []string{"bank/web > shop/db icmp", "bank/db > shop/db tcp/80"},
	},
	"Allow ICMP only": {
		allows: []string{"shop/web > shop/db icmp", "shop-test/web > shop/db icmp", "shop/db > shop/web tcp/80", "192.0.2.1 > shop/db tcp/80"},
		denies: []string{
			"shop/web > shop/db tcp/80", "shop/web > shop/db udp/53", "shop/job > shop/db sctp/80", "shop-test/web > shop/db tcp/65535",
			"bank/web > shop/db tcp/80", "kube-system/dns > shop/db udp/53",
		},
		isolated: []string{"bank/web > shop/db icmp"},
	},
	"Out to a network": {
		allows: []string{
			"shop/web > 10.9.0.1 tcp/443", "shop-test/web > 10.9.255.254 icmp", "shop/web > kube-system/dns udp/53", "shop/web > kube-system/dns tcp/53",
			"shop/db > 192.0.2.1 tcp/443", "shop/db > shop/web tcp/80", "192.0.2.1 > shop/web tcp/80",
		},
		denies: []string{
			"shop/web > 10.10.0.1 tcp/443", "shop/web > 192.0.2.1 icmp", "shop-test/web > 2001:db8::1 tcp/443", "shop/web > shop/db tcp/80",
			"shop/web > bank/db tcp/80", "shop/web > kube-system/dns tcp/80",
		},
		isolated: []string{"shop/db > bank/web tcp/80"},
	},
	"In from a network": {
		allows: []string{"10.9.0.1 > shop/db tcp/80", "10.9.255.254 > shop/db icmp", "10.10.0.1 > shop/web tcp/80", "shop/db > shop/web tcp/80"},
		denies: []string{
			"10.10.0.1 > shop/db tcp/80", "192.0.2.1 > shop/db icmp", "2001:db8::1 > shop/db tcp/80", "shop/web > shop/db tcp/80", "bank/web > shop/db tcp/80",
		},
		isolated: []string{"bank/web > shop/web tcp/80"},
	},
	"In from all but a network": {
		allows:   []string{"10.10.0.1 > shop/db tcp/80", "192.0.2.1 > shop/db icmp", "2001:db8::1 > shop/db tcp/80", "shop/web > shop/db tcp/80", "10.9.0.1 > shop/web tcp/80"},
		denies:   []string{"10.9.0.1 > shop/db tcp/80", "10.9.255.254 > shop/db icmp"},
		isolated: []string{"bank/web > shop/db tcp/80"},
	},
	"From the pods of a pool": {
		allows:   []string{"bank/web > shop/web tcp/8080", "bank/db > shop-test/web tcp/8080", "shop/job > shop/web tcp/80", "192.0.2.1 > shop/web tcp/80"},
		isolated: []string{"bank/web > shop/web tcp/80", "bank/web > shop/web udp/8080", "bank/web > shop/db tcp/8080", "kube-system/dns > shop/web tcp/8080"},
	},
}

// trial is a connection and what the page says of it.
type trial struct {
	Connection
	allowed bool
}

// The policies of the page, alone and beside the one that separates tenants, let pass what the page
// says, for the oracle as well as for the rulesets and their text for iptables.
func TestPage(t *testing.T) {
	c := pageCluster(t)
	n := c.Nodes[0]
	eachPromise(t, c, true, func(title string, trials []trial) {
		n.Catch()
		world, rs := n.World(), n.Index.Node()
		written := writtenOf(t, rs)
		for _, try := range trials {
			out, in := Verdict{Allowed: true}, Verdict{Allowed: true}
			packet := packetOf(try.Connection)
			packet.InInterface, packet.OutInterface = "uplink", "uplink"
			if l := n.Owner(try.Source); l != nil {
				out, packet.InInterface = world.Egress(n.Subject(l), try.Connection), l.Ways[0]
			}
			if l := n.Owner(try.Destination); l != nil {
				in, packet.OutInterface = world.Ingress(n.Subject(l), try.Connection), l.Ways[0]
			}
			d := ruleset.Walk(rs, ruleset.Forward, packet)
			written.compare(t, ruleset.Forward, packet, d)
			if (out.Allowed && in.Allowed) != try.allowed || (d.Verdict == ruleset.Accept) != try.allowed {
				t.Errorf("%s: %s: the page says allowed: %t; the oracle: out %+v, in %+v; the ruleset: %v\n%s", title, try.Connection, try.allowed, out, in, d.Verdict, path(rs, d))
			} else if why := reasons(d, out, in); why != "" {
				t.Errorf("%s: %s: %s; the oracle: out %+v, in %+v\n%s", title, try.Connection, why, out, in, path(rs, d))
			}
		}
	})
}

// Real packets do what the page says, tenants isolated, with the rules of each backend, on the node
// and in the pods.
func TestPageInKernel(t *testing.T) {
	netnstest.Need(t)
	for _, backend := range Backends {
		t.Run(string(backend), func(t *testing.T) {
			c := pageCluster(t)
			w := NewKernel(t, c, backend)
			for _, w.InPods = range []bool{false, true} {
				eachPromise(t, c, false, func(title string, trials []trial) {
					w.Apply()
					for _, try := range trials {
						if w.compareOne(try.Connection) != try.allowed {
							t.Errorf("%s: %s: the page says allowed: %t, and the oracle does not", title, try.Connection, try.allowed)
						}
					}
				})
			}
		})
	}
}

// eachPromise gives the cluster the policies below each heading of the page, beside the one that
// separates tenants and, if wanted, alone, and has the connections tried of which the page says
// something.
func eachPromise(t *testing.T, c *Cluster, alone bool, try func(title string, trials []trial)) {
	t.Helper()
	page := readPage(t)
	if written, promised := slices.Sorted(maps.Keys(page)), slices.Sorted(maps.Keys(promises)); !slices.Equal(written, promised) {
		t.Fatalf("the page has policies below %q, and is tested for %q", written, promised)
	}
	tenants := page[isolation]
	for _, heading := range slices.Sorted(maps.Keys(promises)) {
		policies, says := page[heading], promises[heading]
		if alone && heading != isolation {
			c.SetPolicies(policies)
			try(heading, append(c.trials(t, slices.Concat(says.allows, says.isolated), true), c.trials(t, says.denies, false)...))
		}
		c.SetPolicies(Policies{Network: slices.Concat(policies.Network, tenants.Network), Cluster: slices.Concat(policies.Cluster, tenants.Cluster)})
		try(heading+", tenants isolated", append(c.trials(t, says.allows, true), c.trials(t, slices.Concat(says.denies, says.isolated), false)...))
	}
}

// pageCluster is a cluster of the two tenants that the page names. The pods of one node are local
// there.
func pageCluster(t *testing.T) *Cluster {
	t.Helper()
	c := NewCluster(Seeded(seedtest.Seed(t)))
	for name, tenant := range map[string]string{"shop": "shop", "shop-test": "shop", "bank": "bank", "kube-system": ""} {
		labels := map[string]string{"kubernetes.io/metadata.name": name}
		if tenant != "" {
			labels["tenant"] = tenant
		}
		c.SetNamespace(name, labels)
	}
	n := c.Nodes[0]
	for i, of := range []struct {
		namespace, name string
		labels          map[string]string
		isLocal         bool
	}{
		{"shop", "web", map[string]string{"app": "web"}, true},
		{"shop", "db", map[string]string{"app": "db"}, true},
		{"shop", "job", map[string]string{"app": "job"}, true},
		{"shop-test", "web", map[string]string{"app": "web"}, true},
		{"bank", "web", map[string]string{"app": "web"}, true},
		{"bank", "db", map[string]string{"app": "db"}, false},
		{"kube-system", "dns", map[string]string{"k8s-app": "kube-dns"}, false},
	} {
		p := &policy.Pod{
			NamespacedName: types.NamespacedName{Namespace: of.namespace, Name: of.name}, UID: types.UID(of.namespace + "-" + of.name), Labels: of.labels,
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + i)}), netip.AddrFrom16([16]byte{0: 0xfd, 15: byte(1 + i)})},
		}
		if of.isLocal {
			n.Run(p)
		} else {
			c.SetPod(p)
		}
	}
	return c
}

// trials reads connections, in each family that both ends have.
func (c *Cluster) trials(t *testing.T, texts []string, allowed bool) []trial {
	t.Helper()
	var all []trial
	for _, text := range texts {
		words := strings.Fields(text)
		protocol, port, _ := strings.Cut(words[3], "/")
		number, err := strconv.ParseUint("0"+port, 10, 16)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		before := len(all)
		for _, from := range c.addressesOf(t, words[0]) {
			for _, to := range c.addressesOf(t, words[2]) {
				if from.Is4() != to.Is4() {
					continue
				}
				by := map[string]ruleset.Protocol{"tcp": ruleset.TCP, "udp": ruleset.UDP, "sctp": ruleset.SCTP, "icmp": 1}[protocol]
				if by == 1 && from.Is6() {
					by = 58
				}
				all = append(all, trial{Connection{from, to, by, uint16(number)}, allowed})
			}
		}
		if len(all) == before {
			t.Fatalf("%s: the ends have no family in common", text)
		}
	}
	return all
}

// addressesOf returns a pod's addresses, by namespace and name, or reads an address.
func (c *Cluster) addressesOf(t *testing.T, text string) []netip.Addr {
	t.Helper()
	if namespace, name, ok := strings.Cut(text, "/"); ok {
		if p := c.pods[types.NamespacedName{Namespace: namespace, Name: name}]; p != nil {
			return p.Addresses
		}
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		t.Fatal(err)
	}
	return []netip.Addr{a}
}

// readPage returns the policies of the page by the heading that they stand below.
func readPage(t *testing.T) map[string]Policies {
	t.Helper()
	text, err := os.ReadFile(tenantsPage)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]Policies{}
	heading, rest := "", string(text)
	for rest != "" {
		line, after, _ := strings.Cut(rest, "\n")
		rest = after
		if strings.HasPrefix(line, "#") {
			heading = strings.TrimLeft(line, "# ")
		}
		if line != "```yaml" {
			continue
		}
		block, after, ok := strings.Cut(rest, "\n```\n")
		if !ok {
			t.Fatalf("%s: a block does not end", heading)
		}
		rest = after
		for object := range strings.SplitSeq(block, "\n---\n") {
			var kind metav1.TypeMeta
			if err := yaml.Unmarshal([]byte(object), &kind); err != nil {
				t.Fatalf("%s: %v", heading, err)
			}
			all := found[heading]
			switch kind.Kind {
			case policy.KindNetworkPolicy:
				all.Network = append(all.Network, parse[networkingv1.NetworkPolicy](t, object))
			case policy.KindClusterNetworkPolicy:
				all.Cluster = append(all.Cluster, parse[policyv1alpha2.ClusterNetworkPolicy](t, object))
			default:
				continue
			}
			found[heading] = all
		}
	}
	return found
}
