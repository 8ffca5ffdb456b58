// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/docs"
	"github.com/berth-dev/berth/test/lab"
)

// tenantRules are the policies of the page for tenants, by the first name of a block, and what
// passes under them: "WHO > WHOM PROTOCOL". The page's network 10.9.0.0/16 is the one of a host
// outside.
var tenantRules = []struct {
	policy         string
	allows, denies []string
}{
	{"tenant-shop", []string{"web > db tcp", "web > db icmp", "outside > db tcp", "web > outside tcp"}, []string{"bank > db tcp", "bank > db udp", "bank > db icmp", "web > bank tcp"}},
	{"shop-from-bank tenant-shop", []string{"bank > web tcp"}, []string{"bank > web udp", "bank > db tcp", "bank > job tcp"}},
}

// TestTenants: under policies of the page for tenants, pods with floating IPs of two tenants and a
// host outside of the cluster reach whom the page says, and nobody else. agent/policy/policytest
// has all of the page.
func TestTenants(t *testing.T) {
	shop, bank := newStage(t, "10.0.70.110-10.0.70.119"), newStage(t, "10.0.70.120-10.0.70.129")
	root, err := deploy.Root()
	shop.must(err)
	shop.defineClusterNetworkPolicies(filepath.Join(root, "manifests", "cluster-network-policy", "policy.networking.k8s.io_clusternetworkpolicies.yaml"))
	shop.kubectl("label", "namespace", shop.name, "tenant=shop")
	bank.kubectl("label", "namespace", bank.name, "tenant=bank")

	all := &tenants{stage: shop, members: map[string]tenantMember{}}
	for name, node := range map[string]string{"web": "node1", "job": "node2", "db": "node2"} {
		all.add(name, shop.start(name, netexec, shop.floating, on(node)))
	}
	all.add("bank", bank.start("web", netexec, bank.floating, on("node2")))
	all.outside = shop.Cluster.Network().Client().String()
	all.members["outside"] = tenantMember{party: shop.hostParty(shop.Cluster.Client(), all.outside)}

	page, err := docs.Read(root, "docs/how-to/tenants.md")
	shop.must(err)
	for _, rule := range tenantRules {
		t.Run(rule.policy, func(t *testing.T) {
			part := *shop
			part.t = t
			all.stage = &part
			all.expect(slices.Concat(rule.allows, rule.denies), nil)
			file := all.policies(page, strings.Fields(rule.policy)...)
			part.atEnd(func() { part.kubectl("delete", "-f", file) })
			part.kubectl("apply", "-f", file)
			all.expect(rule.allows, rule.denies)
		})
	}
}

// defineClusterNetworkPolicies has the API server know ClusterNetworkPolicies until the end of the
// test.
func (s *stage) defineClusterNetworkPolicies(definition string) {
	s.t.Helper()
	s.atEnd(func() { s.kubectl("delete", "-f", definition) })
	s.kubectl("apply", "-f", definition)
	s.kubectl("wait", "--for=condition=Established", "-f", definition, patiently)
}

// tenants ask each other.
type tenants struct {
	*stage
	members map[string]tenantMember
	outside string
}

// tenantMember is a pod, or the host outside, which has none.
type tenantMember struct {
	party
	pod *v1.Pod
}

func (c *tenants) add(name string, pod *v1.Pod) {
	c.members[name] = tenantMember{c.podParty(pod), pod}
}

// policies writes the blocks of the page that begin with these names to a file, for the namespace
// of the tenant and the host outside.
func (c *tenants) policies(page docs.Page, names ...string) (file string) {
	c.t.Helper()
	var texts []string
	for _, name := range names {
		for _, block := range page.Blocks {
			if _, rest, ok := strings.Cut(block.Text, "\n  name: "); ok && strings.HasPrefix(rest, name+"\n") && strings.Contains(block.Text, "NetworkPolicy") {
				texts = append(texts, block.Text)
			}
		}
	}
	if len(texts) != len(names) {
		c.t.Fatalf("the page has %d blocks that begin with %v", len(texts), names)
	}
	text := strings.NewReplacer("namespace: shop\n", "namespace: "+c.name+"\n", "10.9.0.0/16", c.outside+"/32").Replace(strings.Join(texts, "---\n"))
	file = filepath.Join(c.t.TempDir(), "policies.yaml")
	c.must(os.WriteFile(file, []byte(text), 0o600))
	return file
}

// expect waits until the connections pass, or do not.
func (c *tenants) expect(allows, denies []string) {
	c.t.Helper()
	for _, connection := range denies {
		c.eventually(connection+" does not pass", func() error {
			if err := c.connect(c.ctx, connection); !errors.Is(err, errNoAnswer) {
				return fmt.Errorf("it passes, or nobody asked: %w", err)
			}
			return nil
		})
	}
	for _, connection := range allows {
		c.eventually(connection+" passes", func() error { return c.connect(c.ctx, connection) })
	}
	// Once more: a packet of before may have been lost.
	for _, connection := range denies {
		if err := c.connect(c.ctx, connection); err == nil {
			c.t.Errorf("%s passes", connection)
		}
	}
}

// connect tries a connection.
func (c *tenants) connect(ctx context.Context, connection string) error {
	var from, to, protocol string
	if _, err := fmt.Sscanf(connection, "%s > %s %s", &from, &to, &protocol); err != nil {
		return err
	}
	address := c.members[to].address
	switch protocol {
	case "icmp":
		return c.ping(ctx, c.members[from], address)
	case "udp":
		_, err := c.members[from].ask(ctx, "udp", address, udpPort, "clientip")
		return err
	}
	if c.members[from].pod == nil {
		// It would go on trying to connect for minutes.
		limited, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		ctx = limited
	}
	_, err := c.members[from].ask(ctx, "http", address, c.members[to].port, "clientip")
	return err
}

// ping asks from the network namespace of a pod, which has no such program, or from the host
// outside.
func (c *tenants) ping(ctx context.Context, from tenantMember, to string) error {
	ping := []string{"ping", "-c", "3", "-i", "0.2", "-W", "2", to}
	ask := func(host *lab.Host, argv ...string) error {
		out, err := host.Exec(ctx, argv...)
		if err != nil && strings.Contains(string(out)+err.Error(), "100% packet loss") {
			return fmt.Errorf("%w: %w", errNoAnswer, err)
		}
		return err
	}
	if from.pod == nil {
		return ask(c.Cluster.Client(), ping...)
	}
	const inNamespace = `for ns in /run/netns/*; do
	if nsenter --net="$ns" ip -o addr show to "$1" | grep -q .; then shift; exec nsenter --net="$ns" "$@"; fi
done
echo "no namespace of a pod has $1" >&2; exit 1`
	return ask(c.node(from.pod.Spec.NodeName).Host, append([]string{"sh", "-c", inNamespace, "ping", from.address}, ping...)...)
}
