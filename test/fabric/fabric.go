// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/agent/netnstest"
)

// Subnets of the pools in the configurations.
const (
	Subnet4 = "10.98.0.0/24"
	Subnet6 = "2001:db8:98::/64"
)

// Fabric is a spine and two racks.
type Fabric struct {
	t     *testing.T
	Spine *netnstest.Host
	// Racks are in the order of their numbers, from 1.
	Racks []*Rack
	// Routers are the daemons of spine and ToRs.
	Routers map[*netnstest.Host]*Daemon
	configs map[*netnstest.Host]string
}

// Rack is a ToR and a node.
type Rack struct {
	fabric *Fabric
	number int
	// Node's link to the ToR is eth0.
	ToR, Node *netnstest.Host
	// Address is the node's.
	Address string
	// Speaker is the node's routing daemon, nil before.
	Speaker *Daemon
}

// Speaker starts a node's routing daemon by a configuration.
type Speaker func(ctx context.Context, in func(func() error) error, config string) (*Daemon, error)

// Speakers are the ways in which nodes announce, by name: who runs, and the configuration.
func Speakers(t *testing.T) map[string]struct {
	Start  Speaker
	Config string
} {
	t.Helper()
	return map[string]struct {
		Start  Speaker
		Config string
	}{
		"BIRD":    {StartBIRD, config(t, "node-bird.conf")},
		"FRR":     {StartFRR, config(t, "node-frr.conf")},
		"frr-k8s": {StartFRR, frrK8s + raw(t)},
	}
}

// frrK8s is as frr-k8s writes a session of a node without prefixes to announce.
const frrK8s = `
router bgp 65201
 bgp router-id 10.11.1.11
 no bgp ebgp-requires-policy
 no bgp network import-check
 no bgp default ipv4-unicast
 bgp graceful-restart preserve-fw-state
 neighbor 10.11.1.1 remote-as 65101
 neighbor 10.11.1.1 timers 3 9
 address-family ipv4 unicast
  neighbor 10.11.1.1 activate
  neighbor 10.11.1.1 route-map 10.11.1.1-in in
  neighbor 10.11.1.1 route-map 10.11.1.1-out out
 exit-address-family
 address-family ipv6 unicast
  neighbor 10.11.1.1 activate
  neighbor 10.11.1.1 route-map 10.11.1.1-in in
  neighbor 10.11.1.1 route-map 10.11.1.1-out out
 exit-address-family
!
ip prefix-list 10.11.1.1-allowed-ipv4 seq 1 deny any
ipv6 prefix-list 10.11.1.1-allowed-ipv6 seq 1 deny any
!
route-map 10.11.1.1-out permit 1
 match ip address prefix-list 10.11.1.1-allowed-ipv4
!
route-map 10.11.1.1-out permit 2
 match ipv6 address prefix-list 10.11.1.1-allowed-ipv6
!
route-map 10.11.1.1-in deny 20
!
`

// config reads a file of docs/how-to/bgp.
func config(t *testing.T, name string) string {
	t.Helper()
	// Tests run in their package's folder, which is in test/.
	text, err := os.ReadFile("../../docs/how-to/bgp/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// raw returns the configuration in the FRRConfiguration.
func raw(t *testing.T) string {
	t.Helper()
	var object struct {
		Spec struct{ Raw struct{ RawConfig string } }
	}
	if err := yaml.Unmarshal([]byte(config(t, "node-frr-k8s.yaml")), &object); err != nil {
		t.Fatal(err)
	}
	return object.Spec.Raw.RawConfig
}

// New makes a fabric around a spine, which has the default routes of all others behind it. compares
// says that routers compare the metric of paths from several racks.
func New(t *testing.T, spine *netnstest.Host, compares bool) *Fabric {
	t.Helper()
	f := &Fabric{t: t, Spine: spine, Routers: map[*netnstest.Host]*Daemon{}, configs: map[*netnstest.Host]string{}}
	forwards(spine)
	// Connections and not hosts are shared out.
	sysctl(spine, "net/ipv4/fib_multipath_hash_policy", "1")
	sysctl(spine, "net/ipv6/fib_multipath_hash_policy", "1")
	for number := 1; number <= 2; number++ {
		r := &Rack{fabric: f, number: number, ToR: netnstest.New(t), Node: netnstest.New(t), Address: fmt.Sprintf("10.11.%d.11", number)}
		forwards(r.ToR)
		join(spine, r.ToR, fmt.Sprintf("tor%d", number), "spine", fmt.Sprintf("10.10.%d.", number), fmt.Sprintf("2001:db8:10:%d::", number), "2")
		join(r.ToR, r.Node, "node", "eth0", fmt.Sprintf("10.11.%d.", number), fmt.Sprintf("2001:db8:11:%d::", number), "11")
		for _, h := range []struct {
			host     *netnstest.Host
			via, six string
		}{{r.ToR, fmt.Sprintf("10.10.%d.1", number), fmt.Sprintf("2001:db8:10:%d::1", number)}, {r.Node, fmt.Sprintf("10.11.%d.1", number), fmt.Sprintf("2001:db8:11:%d::1", number)}} {
			h.host.IP("route", "add", "default", "via", h.via)
			h.host.IP("-6", "route", "add", "default", "via", h.six)
		}
		f.route(r.ToR, r.of(config(t, "rack-router-frr.conf")), compares)
		f.Racks = append(f.Racks, r)
	}
	f.route(spine, config(t, "spine-frr.conf"), compares)
	return f
}

// of returns a configuration of rack 1 for this one.
func (r *Rack) of(config string) string {
	n := fmt.Sprint(r.number)
	return strings.NewReplacer("10.10.1.", "10.10."+n+".", "10.11.1.", "10.11."+n+".", "2001:db8:11:1:", "2001:db8:11:"+n+":", "65101", "6510"+n, "65201", "6520"+n).Replace(config)
}

// route starts the FRR of a router.
func (f *Fabric) route(router *netnstest.Host, config string, compares bool) {
	f.t.Helper()
	if !compares {
		var kept []string
		for line := range strings.Lines(config) {
			if !strings.Contains(line, "always-compare-med") && !strings.Contains(line, "attribute-unchanged med") && !strings.Contains(line, "as-path ignore") {
				kept = append(kept, line)
			}
		}
		config = strings.Join(kept, "")
	}
	f.configs[router] = config
	f.reload(router)
}

// reload starts the FRR of a router, anew after its end.
func (f *Fabric) reload(router *netnstest.Host) {
	f.t.Helper()
	f.Routers[router] = f.keep(StartFRR(f.t.Context(), router.Try, f.configs[router]))
}

// Speak starts the node's routing daemon.
func (r *Rack) Speak(start Speaker, config string) {
	r.fabric.t.Helper()
	r.Speaker = r.fabric.keep(start(r.fabric.t.Context(), r.Node.Try, r.of(config)))
}

// keep has a daemon stop at the end of the test.
func (f *Fabric) keep(d *Daemon, err error) *Daemon {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		if f.t.Failed() {
			f.t.Log(d.Log())
		}
		if err := d.Stop(); err != nil {
			f.t.Error(err)
		}
	})
	return d
}

// Leads lists the nodes by which the spine leads an address.
func (f *Fabric) Leads(address string) []string {
	f.t.Helper()
	family := "-4"
	if strings.Contains(address, ":") {
		family = "-6"
	}
	out := f.Spine.IP(family, "route", "show", address)
	var all []string
	for number := 1; number <= len(f.Racks); number++ {
		if strings.Contains(out, fmt.Sprintf("dev tor%d", number)) {
			all = append(all, fmt.Sprint(number))
		}
	}
	return all
}

// AwaitLeads waits until the spine leads an address to these racks and no others.
func (f *Fabric) AwaitLeads(address string, racks ...string) {
	f.t.Helper()
	netnstest.Eventually(f.t, func() error {
		if got := f.Leads(address); !slices.Equal(got, racks) {
			return fmt.Errorf("the spine leads %s to the racks %v, want %v", address, got, racks)
		}
		return nil
	})
}

// join makes a link between two hosts, with addresses of both families: a's end in 1.
func join(a, b *netnstest.Host, nameA, nameB, four, six, endB string) {
	const endA = "1"
	// Without waiting for duplicate address detection.
	sysctl(a, "net/ipv6/conf/default/accept_dad", "0")
	sysctl(b, "net/ipv6/conf/default/accept_dad", "0")
	a.IP("link", "add", nameA, "type", "veth", "peer", "name", nameB, "netns", b.Path())
	for _, end := range []struct {
		host      *netnstest.Host
		link, end string
	}{{a, nameA, endA}, {b, nameB, endB}} {
		end.host.IP("link", "set", end.link, "up")
		end.host.IP("addr", "add", four+end.end+"/24", "dev", end.link)
		end.host.IP("addr", "add", six+end.end+"/64", "dev", end.link, "nodad")
	}
}

func forwards(h *netnstest.Host) {
	sysctl(h, "net/ipv4/ip_forward", "1")
	sysctl(h, "net/ipv6/conf/all/forwarding", "1")
}

func sysctl(h *netnstest.Host, key, value string) {
	h.Run(func() error { return os.WriteFile("/proc/sys/"+key, []byte(value), 0o644) })
}
