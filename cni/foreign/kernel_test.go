// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/netlinksafe"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/socket/sockettest"
	"github.com/berth-dev/berth/cni/veth/wire"
)

var addresses = []api.Address{
	{Address: netip.MustParseAddr("10.0.70.5"), Subnet: netip.MustParsePrefix("10.0.70.0/24"), Gateway: netip.MustParseAddr("10.0.70.1")},
	{Address: netip.MustParseAddr("2001:db8:70::5"), Subnet: netip.MustParsePrefix("2001:db8:70::/64"), Gateway: netip.MustParseAddr("2001:db8:70::1")},
}

// build compiles upstream's plugins and berth-ipam, which they call.
func build(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	const upstream = "github.com/containernetworking/plugins/plugins/main/"
	command := exec.Command("go", "build", "-ldflags=-s -w", "-o", dir, "../ipam", upstream+"bridge", upstream+"macvlan", upstream+"ptp")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", command, err, out)
	}
	if err := os.Rename(filepath.Join(dir, "ipam"), filepath.Join(dir, api.IPAMType)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// serve answers berth-ipam as the agent does for a pod with the addresses.
func serve(t *testing.T, addresses []api.Address) (socket string) {
	t.Helper()
	socket = sockettest.Path(t)
	sockettest.Serve(t, socket, func(w http.ResponseWriter, r *http.Request) {
		var req api.Request
		var response api.Response
		if err := json.NewDecoder(r.Body).Decode(&req); err != nil || r.URL.Path != api.PathIPAM {
			t.Errorf("%s: %v", r.URL, err)
		}
		if req.Command != "DEL" {
			conf, _, err := ParseConfig(req.Config)
			if err != nil {
				t.Error(err)
				return
			}
			result, err := conf.Result(addresses)
			if err != nil {
				t.Error(err)
				return
			}
			response.Result, _ = json.Marshal(result)
		}
		_ = json.NewEncoder(w).Encode(response)
	})
	return socket
}

// site is a node, a pod and a client in the network of the pod's addresses, with the
// network's router.
type site struct {
	node, pod, client, router *netnstest.Host
	dir, conf                 string
}

func newSite(t *testing.T, dir, conf string) *site {
	s := &site{node: netnstest.New(t), pod: netnstest.New(t), client: netnstest.New(t), router: netnstest.New(t), dir: dir, conf: conf}
	wire := netnstest.NewWire(t)
	for h, addrs := range map[*netnstest.Host]string{
		s.node: "10.0.60.11/24,2001:db8:60::11/64", s.client: "10.0.70.50/24,2001:db8:70::50/64",
		s.router: "10.0.60.1/24,10.0.70.1/24,172.31.1.1/32,2001:db8:60::1/64,2001:db8:70::1/64,2001:db8:71::1/128,fe80::1/64",
	} {
		for _, key := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
			h.Run(func() error { return os.WriteFile("/proc/sys/net/"+key, []byte("1"), 0o644) })
		}
		h.Run(func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0o644) })
		var all []netip.Prefix
		for a := range strings.SplitSeq(addrs, ",") {
			all = append(all, netip.MustParsePrefix(a))
		}
		wire.Plug(h, "eth0", all...)
	}
	s.node.IP("route", "add", "default", "via", "10.0.60.1")
	s.node.IP("-6", "route", "add", "default", "via", "2001:db8:60::1")
	if strings.Contains(conf, `"br0"`) {
		s.node.IP("link", "add", "br0", "type", "bridge")
		s.node.IP("link", "set", "eth0", "master", "br0")
		s.node.IP("link", "set", "br0", "up")
	}
	return s
}

func (s *site) plugin(t *testing.T, command string) *current.Result {
	t.Helper()
	var plugin struct{ Type string }
	if err := json.Unmarshal([]byte(s.conf), &plugin); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(s.dir, plugin.Type))
	cmd.Stdin = bytes.NewReader([]byte(s.conf))
	cmd.Env = []string{"CNI_COMMAND=" + command, "CNI_CONTAINERID=c", "CNI_NETNS=" + s.pod.Path(), "CNI_IFNAME=eth0", "CNI_PATH=" + s.dir, "PATH=" + os.Getenv("PATH")}
	var out []byte
	if err := s.node.Try(func() (err error) { out, err = cmd.Output(); return err }); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	if command != "ADD" {
		return nil
	}
	var result current.Result
	if err := json.Unmarshal(out, &result); err != nil {
		t.Fatal(err)
	}
	return &result
}

// answers says whether the pod answers from, at once.
func answers(from *netnstest.Host, addr netip.Addr) bool {
	_, _ = from.Command("ip", "neigh", "flush", "all")
	_, err := from.Command("ping", "-c", "1", "-W", "1", addr.String())
	return err == nil
}

func expect(t *testing.T, from *netnstest.Host, want bool) {
	t.Helper()
	for _, a := range addresses {
		netnstest.Eventually(t, func() error {
			if answers(from, a.Address) != want {
				return fmt.Errorf("%s answers: %v, want %v", a.Address, !want, want)
			}
			return nil
		})
	}
}

// TestSilence: whichever plugin made an interface, it falls silent, comes back as it was, and its
// plugin's DEL finds it.
func TestSilence(t *testing.T) {
	t.Parallel()
	netnstest.Need(t)
	dir := build(t)
	onLink := slices.Clone(addresses)
	onLink[0].Gateway, onLink[1].Gateway = netip.MustParseAddr("172.31.1.1"), netip.MustParseAddr("fe80::1")
	further := slices.Clone(onLink)
	further[1].Gateway = netip.MustParseAddr("2001:db8:71::1")
	for _, c := range []struct {
		plugin, settings string
		addresses        []api.Address
	}{
		{"bridge", `"bridge":"br0",`, addresses}, {"macvlan", `"master":"eth0",`, addresses}, {"ptp", "", addresses},
		{"bridge", `"bridge":"br0",`, onLink}, {"macvlan", `"master":"eth0",`, further},
	} {
		plugin, settings := c.plugin, c.settings
		t.Run(fmt.Sprintf("%s, gateways %s and %s", plugin, c.addresses[0].Gateway, c.addresses[1].Gateway), func(t *testing.T) {
			t.Parallel()
			socket, gateways := serve(t, c.addresses), ""
			if plugin == "ptp" {
				gateways = `,"gateways":["10.0.70.254","2001:db8:70::fe"]`
			}
			s := newSite(t, dir, fmt.Sprintf(`{"cniVersion":"1.1.0","name":"n","type":%q,%s"ipam":{"type":"berth-ipam","socket":%q%s}}`, plugin, settings, socket, gateways))
			from := s.client
			if plugin == "ptp" {
				from = s.router
				from.IP("route", "add", "10.0.70.5", "via", "10.0.60.11")
				from.IP("-6", "route", "add", "2001:db8:70::5", "via", "2001:db8:60::11")
			}
			result := s.plugin(t, "ADD")
			i := Interface{NetNS: s.pod.Path(), Name: "eth0", Addresses: []netip.Addr{addresses[0].Address, addresses[1].Address}, Result: result}
			expect(t, from, true)
			s.node.Run(i.Announce)

			s.node.Run(i.Silence)
			expect(t, from, false)
			s.node.Run(i.Silence)
			s.node.Run(i.Announce) // of nothing
			s.node.Run(i.Restore)
			expect(t, from, true)
			reached := []string{"10.0.60.1", "2001:db8:60::1", "10.0.70.1"}
			if plugin != "ptp" {
				reached = append(reached, c.addresses[0].Gateway.String(), strings.Replace(c.addresses[1].Gateway.String(), "fe80::1", "fe80::1%eth0", 1))
			}
			for _, to := range reached {
				if out, err := s.pod.Command("ping", "-c", "1", "-w", "60", to); err != nil {
					t.Errorf("the pod cannot send after Restore: %v\n%s", err, out)
				}
			}

			// The container renames its interface, as it may with CAP_NET_ADMIN.
			if plugin != "ptp" {
				s.pod.IP("link", "set", "eth0", "down")
				s.pod.IP("link", "set", "eth0", "name", "mine0")
				s.pod.IP("link", "set", "mine0", "up")
				s.node.Run(i.Silence)
				expect(t, from, false)
				s.pod.IP("link", "set", "mine0", "down")
				s.pod.IP("link", "set", "mine0", "name", "eth0")
			}

			// No path leads to its namespace any more.
			s.node.Run(i.Restore)
			if lost := (Interface{Name: "eth0", Addresses: i.Addresses, Result: result}); plugin != "macvlan" {
				s.node.Run(lost.Silence)
				expect(t, from, false)
				if err := s.node.Try(lost.Restore); err == nil {
					t.Error("Restore of a container that is gone succeeds")
				}
			}
			s.plugin(t, "DEL")
			if err := s.node.Try(i.Silence); !errors.Is(err, ErrNotSeen) {
				t.Errorf("Silence of an interface that is gone: %v, want ErrNotSeen", err)
			}
			if err := s.node.Try(i.Restore); err == nil {
				t.Error("Restore of an interface that is gone succeeds")
			}
		})
	}
}

const bridged = `{"type":"bridge","bridge":"br0"}`

// join gives a pod a veth to the node's bridge, with the first address.
func (s *site) join(pod *netnstest.Host, host string) Interface {
	s.node.IP("link", "add", host, "type", "veth", "peer", "name", "eth0", "netns", pod.Path())
	s.node.IP("link", "set", host, "master", "br0", "up")
	wear(pod, "eth0")
	return Interface{ContainerID: host, NetNS: pod.Path(), Name: "eth0", Addresses: []netip.Addr{addresses[0].Address}}
}

func wear(pod *netnstest.Host, link string) {
	pod.IP("link", "set", link, "up")
	pod.IP("addr", "add", "10.0.70.5/24", "dev", link)
}

func expectFirst(t *testing.T, s *site, want bool) {
	t.Helper()
	netnstest.Eventually(t, func() error {
		if answers(s.client, addresses[0].Address) != want {
			return fmt.Errorf("%s answers: %v, want %v", addresses[0].Address, !want, want)
		}
		return nil
	})
}

// TestSilenceOfHidden: a container with CAP_NET_ADMIN hides its interface and answers on.
func TestSilenceOfHidden(t *testing.T) {
	t.Parallel()
	netnstest.Need(t)
	for name, hide := range map[string]func(s *site, nested *netnstest.Host){
		"address on lo": func(s *site, _ *netnstest.Host) {
			s.pod.IP("link", "set", "eth0", "down")
			s.pod.IP("link", "set", "eth0", "name", "mine0")
			s.pod.IP("addr", "flush", "dev", "mine0")
			s.pod.IP("link", "set", "mine0", "up")
			s.pod.IP("link", "set", "lo", "up")
			s.pod.IP("addr", "add", "10.0.70.5/32", "dev", "lo")
			s.pod.IP("route", "add", "10.0.70.0/24", "dev", "mine0", "src", "10.0.70.5")
		},
		"in a nested namespace": func(s *site, nested *netnstest.Host) {
			s.pod.IP("link", "set", "eth0", "netns", nested.Path())
			wear(nested, "eth0")
		},
	} {
		for _, gone := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, path gone %v", name, gone), func(t *testing.T) {
				t.Parallel()
				s := newSite(t, "", bridged)
				i := s.join(s.pod, "pod0")
				if err := s.node.Try(i.CheckMark); !errors.Is(err, ErrNotMarked) {
					t.Errorf("CheckMark before Mark: %v", err)
				}
				s.node.Run(i.Mark)
				s.node.Run(i.CheckMark)
				hide(s, netnstest.New(t))
				expectFirst(t, s, true)
				if gone {
					i.NetNS = ""
				}
				s.node.Run(i.Silence)
				expectFirst(t, s, false)
			})
		}
		t.Run(name+", named by the result", func(t *testing.T) {
			t.Parallel()
			s := newSite(t, "", bridged)
			i := s.join(s.pod, "pod0")
			s.node.Run(func() error {
				link, err := netlinksafe.LinkByName("pod0")
				if err != nil {
					return err
				}
				i.Result = &current.Result{Interfaces: []*current.Interface{{Name: "pod0", Mac: link.Attrs().HardwareAddr.String()}}}
				return nil
			})
			hide(s, netnstest.New(t))
			expectFirst(t, s, true)
			s.node.Run(i.Silence)
			expectFirst(t, s, false)
		})
	}
}

// TestSilenceLeavesOthers: links of other pods and of the node stay up, even if a container or a
// path points at them.
func TestSilenceLeavesOthers(t *testing.T) {
	t.Parallel()
	netnstest.Need(t)
	s := newSite(t, "", bridged)
	s.join(s.pod, "pod0")
	index := func(h *netnstest.Host, link string) (index int) {
		h.Run(func() error {
			l, err := netlinksafe.LinkByName(link)
			if err == nil {
				index = l.Attrs().Index
			}
			return err
		})
		return index
	}
	// A pair inside of a container, with the indices of another's pair.
	forger := netnstest.New(t)
	forger.IP("link", "add", "name", "eth0", "index", fmt.Sprint(index(s.pod, "eth0")), "type", "veth",
		"peer", "name", "peer0", "index", fmt.Sprint(index(s.node, "pod0")))
	wear(forger, "eth0")
	s.node.IP("link", "add", "forger0", "type", "veth", "peer", "name", "eth1", "netns", forger.Path())
	forged := Interface{ContainerID: "forger", NetNS: forger.Path(), Name: "eth0", Addresses: []netip.Addr{addresses[0].Address}}
	s.node.Run(forged.Mark)
	s.node.Run(forged.Silence)
	expectFirst(t, s, true)
	if got := s.node.IP("link", "show", "pod0"); strings.Contains(got, "alias") {
		t.Errorf("the other pod's link is marked: %s", got)
	}
	forged.Result = &current.Result{IPs: []*current.IPConfig{{Address: net.IPNet{IP: net.IPv4(10, 0, 70, 5), Mask: net.CIDRMask(32, 32)}}}}
	s.node.IP("link", "set", "pod0", "nomaster")
	s.node.Run(forged.Restore)
	if got := s.node.IP("route", "show", "dev", "pod0"); got != "" {
		t.Errorf("Restore gave the other pod's link the route %s", got)
	}
	s.node.IP("link", "set", "pod0", "master", "br0")

	// The path leads to the node by now.
	stale := Interface{ContainerID: "stale", NetNS: s.node.Path(), Name: "eth0", Addresses: []netip.Addr{addresses[0].Address}}
	s.node.Run(stale.Silence)
	s.node.Run(stale.Announce)
	expectFirst(t, s, true)
	if err := s.node.Try(stale.Restore); err == nil {
		t.Error("Restore on the node succeeds")
	}

	// The path leads to another pod by now.
	s.pod.IP("addr", "replace", "10.0.70.5/24", "dev", "eth0")
	stale.NetNS, stale.Addresses = s.pod.Path(), []netip.Addr{netip.MustParseAddr("10.0.70.6")}
	if err := s.node.Try(stale.Silence); !errors.Is(err, ErrNotSeen) {
		t.Errorf("Silence in another pod's namespace: %v, want ErrNotSeen", err)
	}
	expectFirst(t, s, true)
}

// TestSilenceBeforeWiring: the plugin has made a link and gives it the address after Silence.
func TestSilenceBeforeWiring(t *testing.T) {
	t.Parallel()
	netnstest.Need(t)
	s := newSite(t, "", "{}")
	i := Interface{ContainerID: "c", NetNS: s.pod.Path(), Name: "net1", Addresses: []netip.Addr{addresses[0].Address}}
	if err := s.node.Try(i.Silence); !errors.Is(err, ErrNotSeen) {
		t.Errorf("Silence before there is a link: %v, want ErrNotSeen", err)
	}
	s.node.IP("link", "add", "link", "eth0", "name", "net1", "netns", s.pod.Path(), "type", "macvlan", "mode", "bridge")
	if err := s.node.Try(i.Silence); !errors.Is(err, ErrNotSeen) {
		t.Errorf("Silence before the link has the address: %v, want ErrNotSeen", err)
	}
	wear(s.pod, "net1")
	expectFirst(t, s, true)
	s.node.Run(i.Silence)
	expectFirst(t, s, false)
}

// TestClose: an interface on a bridge is silent until Restore, and its container keeps its routes;
// of another one Close says that it cannot, and leaves it as it is.
func TestClose(t *testing.T) {
	t.Parallel()
	netnstest.Need(t)
	s := newSite(t, "", bridged)
	i := s.join(s.pod, "pod0")
	s.pod.IP("route", "add", "10.9.0.0/16", "via", "10.0.70.77")
	s.node.Run(i.CheckOpen)
	expectFirst(t, s, true)
	s.node.Run(i.Close)
	s.node.Run(i.Close)
	expectFirst(t, s, false)
	if err := s.node.Try(i.CheckOpen); !errors.Is(err, wire.ErrNotWired) {
		t.Errorf("CheckOpen of a closed interface: %v, want %v", err, wire.ErrNotWired)
	}
	s.node.Run(i.Restore)
	s.node.Run(i.CheckOpen)
	expectFirst(t, s, true)
	if routes := s.pod.IP("route", "show"); !strings.Contains(routes, "10.9.0.0/16") {
		t.Errorf("the container has lost its route: %s", routes)
	}

	s.node.IP("link", "del", "pod0")
	s.node.IP("link", "set", "eth0", "nomaster")
	s.node.IP("link", "add", "link", "eth0", "name", "net1", "netns", s.pod.Path(), "type", "macvlan", "mode", "bridge")
	wear(s.pod, "net1")
	i.Name = "net1"
	expectFirst(t, s, true)
	if err := s.node.Try(i.Close); !errors.Is(err, ErrCannotClose) || !strings.Contains(err.Error(), "net1 is a link of type macvlan") {
		t.Errorf("Close of a macvlan link: %v, want %v", err, ErrCannotClose)
	}
	s.node.Run(i.CheckOpen)
	expectFirst(t, s, true)
}

// Links has what plugins made in a container, and nothing where the container is gone or its path
// leads to the node.
func TestLinks(t *testing.T) {
	netnstest.Need(t)
	node, pod := netnstest.New(t), netnstest.New(t)
	node.IP("link", "add", "pod0", "type", "veth", "peer", "name", "net1", "netns", pod.Path())
	for path, want := range map[string][]string{pod.Path(): {"net1"}, node.Path(): nil, "/run/none": nil, "": nil, "/etc/hostname": nil} {
		var links map[string]int
		node.Run(func() (err error) { links, err = Links(path); return err })
		if len(links) != len(want) || (links == nil) != (want == nil) || want != nil && links[want[0]] == 0 {
			t.Errorf("Links(%q) = %v, want %q", path, links, want)
		}
	}
}
