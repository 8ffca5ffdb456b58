// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/conntrack"
)

func port(protocol, hostIP string, number uint16) api.HostPort {
	p := api.HostPort{Protocol: protocol, HostPort: number, ContainerPort: containerPort}
	if hostIP != "" {
		p.HostIP = netip.MustParseAddr(hostIP)
	}
	return p
}

func TestConflict(t *testing.T) {
	for _, c := range []struct {
		a, b api.HostPort
		want bool
	}{
		{port("TCP", "", 80), port("TCP", "", 80), true},
		{port("TCP", "", 80), port("UDP", "", 80), false},
		{port("TCP", "", 80), port("TCP", "", 81), false},
		{port("TCP", "", 80), port("TCP", "10.0.60.11", 80), true},
		{port("TCP", "10.0.60.11", 80), port("TCP", "10.0.60.12", 80), false},
		{port("TCP", "10.0.60.11", 80), port("TCP", "10.0.60.11", 80), true},
		{port("TCP", "0.0.0.0", 80), port("TCP", "10.0.60.11", 80), true},
		{port("TCP", "0.0.0.0", 80), port("TCP", "", 80), true},
		{port("TCP", "0.0.0.0", 80), port("TCP", "::", 80), false},
		{port("TCP", "::", 80), port("TCP", "2001:db8::1", 80), true},
		{port("TCP", "10.0.60.11", 80), port("TCP", "2001:db8::1", 80), false},
		{port("TCP", "::", 80), port("TCP", "", 80), true},
	} {
		if got := Conflict(c.a, c.b); got != c.want {
			t.Errorf("Conflict(%s, %s) = %v", c.a, c.b, got)
		}
		if got := Conflict(c.b, c.a); got != c.want {
			t.Errorf("Conflict(%s, %s) = %v", c.b, c.a, got)
		}
	}
}

func TestMappings(t *testing.T) {
	v4, second, v6 := netip.MustParseAddr("10.0.70.5"), netip.MustParseAddr("10.0.70.6"), netip.MustParseAddr("2001:db8:70::5")
	for _, c := range []struct {
		hostIP string
		pod    []netip.Addr
		want   []netip.Addr
	}{
		{"", []netip.Addr{v6, v4, second}, []netip.Addr{v4, v6}},
		{"", []netip.Addr{v6}, []netip.Addr{v6}},
		{"0.0.0.0", []netip.Addr{v4, v6}, []netip.Addr{v4}},
		{"::", []netip.Addr{v4, v6}, []netip.Addr{v6}},
		{"10.0.60.11", []netip.Addr{v4, v6}, []netip.Addr{v4}},
		{"10.0.60.11", []netip.Addr{v6}, nil},
		{"", nil, nil},
	} {
		mappings, err := Mappings([]api.HostPort{port("TCP", c.hostIP, 80)}, c.pod, false)
		var got []netip.Addr
		for _, m := range mappings {
			got = append(got, m.Pod)
		}
		if (err != nil) != (c.want == nil) || !cmp.Equal(got, c.want, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })) {
			t.Errorf("hostIP %q, pod %v: leads to %v, %v, want %v", c.hostIP, c.pod, got, err, c.want)
		}
	}
}

// mappings reads the content of contentOf back, and changes returns the difference alone.
func TestContent(t *testing.T) {
	pod := netip.MustParseAddr("2001:db8:70::5")
	mappings := []Mapping{
		{HostPort: port("SCTP", "2001:db8:60::11", 8080), Pod: pod},
		{HostPort: port("UDP", "", 53), Pod: netip.MustParseAddr("10.0.70.5"), Detached: true},
	}
	have := contentOf(mappings, map[netip.Addr]string{pod: "bth1"}, nil)
	want := []forward{
		{hostPort: 53, protocol: unix.IPPROTO_UDP, pod: netip.MustParseAddrPort("10.0.70.5:80")},
		{hostIP: netip.MustParseAddr("2001:db8:60::11"), hostPort: 8080, protocol: unix.IPPROTO_SCTP, pod: netip.MustParseAddrPort("[2001:db8:70::5]:80")},
	}
	if diff := cmp.Diff(want, have.forwards(), cmp.AllowUnexported(forward{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	if got := have.linkNames(); !cmp.Equal(got, []string{"bth1"}) {
		t.Errorf("links %v", got)
	}
	read := contentOf(have.mappings(), map[netip.Addr]string{pod: "bth1"}, nil)
	if diff := cmp.Diff(have, read); diff != "" {
		t.Errorf("mappings() makes something else (-was +is):\n%s", diff)
	}
	mappings[1].Pod = netip.MustParseAddr("10.0.70.6")
	now := contentOf(mappings, map[netip.Addr]string{pod: "bth1"}, nil)
	// The map's value, forwards, hairpin and detached.
	if gone, missing := have.without(now), now.without(have); len(gone) != 4 || len(missing) != 4 {
		t.Errorf("another pod changes %d elements to %d, want 4", len(gone), len(missing))
	}
	c := changesTo(have, now)
	if len(c.began) != 1 || len(c.ended) != 1 || slices.Collect(maps.Keys(c.began))[0].pod.Addr() != mappings[1].Pod {
		t.Errorf("changes are %v", c)
	}
}

// Only connections that a change concerns are ended.
func TestStale(t *testing.T) {
	node, pod, old, far := netip.MustParseAddr("10.0.60.11"), netip.MustParseAddr("10.0.70.5"), netip.MustParseAddr("10.0.70.6"), netip.MustParseAddr("8.8.8.8")
	began := map[forward]bool{{hostPort: 53, protocol: unix.IPPROTO_UDP, pod: netip.MustParseAddrPort("10.0.70.5:80")}: true}
	ended := map[forward]bool{{hostPort: 54, protocol: unix.IPPROTO_UDP, pod: netip.MustParseAddrPort("10.0.70.6:80")}: true}
	s := newStale(changes{began, ended}, []netip.Addr{node}, func(f forward) bool { return began[f] })
	undone := newStale(changes{began, ended}, []netip.Addr{node}, func(f forward) bool { return ended[f] })
	for name, c := range map[string]struct {
		protocol uint8
		to       netip.Addr
		port     uint16
		from     netip.Addr
		fromPort uint16
		want     bool
	}{
		"to the node before":             {unix.IPPROTO_UDP, node, 53, node, 53, true},
		"to another pod before":          {unix.IPPROTO_UDP, node, 53, old, 80, true},
		"to the pod already":             {unix.IPPROTO_UDP, node, 53, pod, 80, false},
		"of a pod to a server elsewhere": {unix.IPPROTO_UDP, far, 53, far, 53, false},
		"of another protocol":            {unix.IPPROTO_TCP, node, 53, node, 53, false},
		"to another port":                {unix.IPPROTO_UDP, node, 55, node, 55, false},
		"to a pod that lost the port":    {unix.IPPROTO_UDP, node, 54, old, 80, true},
		"to the lost port of the node":   {unix.IPPROTO_UDP, node, 54, node, 54, false},
	} {
		flow := &conntrack.Flow{
			Protocol: c.protocol,
			Original: conntrack.Tuple{Destination: netip.AddrPortFrom(c.to, c.port)},
			Reply:    conntrack.Tuple{Source: netip.AddrPortFrom(c.from, c.fromPort)},
		}
		if got := s.has(flow); got != c.want {
			t.Errorf("a connection %s: ended is %v, want %v", name, got, c.want)
		}
		if undone.has(flow) {
			t.Errorf("a connection %s is ended though the ports are as before again", name)
		}
	}
}

// The connections of several changes are read once. Those that could not be ended are, by the next
// call, unless a later change leads them where they go.
func TestEndConnections(t *testing.T) {
	flow := func(pod string) *conntrack.Flow {
		return &conntrack.Flow{
			Protocol: unix.IPPROTO_UDP,
			Original: conntrack.Tuple{Destination: netip.MustParseAddrPort("10.0.60.11:53")},
			Reply:    conntrack.Tuple{Source: netip.MustParseAddrPort(pod)},
		}
	}
	first, second := flow("10.0.70.5:53"), flow("10.0.70.6:53")
	reads, ended := 0, []*conntrack.Flow{}
	var fails error
	endWhere := func(families []int, which func(*conntrack.Flow) bool) error {
		reads += len(families)
		for _, f := range []*conntrack.Flow{first, second} {
			if which(f) {
				ended = append(ended, f)
			}
		}
		return fails
	}
	content := func(pods ...string) content {
		var mappings []Mapping
		for i, pod := range pods {
			mappings = append(mappings, Mapping{HostPort: port("UDP", "10.0.60.11", uint16(53+i)), Pod: netip.MustParseAddr(pod)})
			mappings[i].ContainerPort = 53
		}
		return contentOf(mappings, nil, nil)
	}
	f := &Forwarder{}
	expect := func(what string, wantReads int, wantErr error, want ...*conntrack.Flow) {
		t.Helper()
		reads, ended = 0, nil
		if err := f.endConnections(endWhere); !errors.Is(err, wantErr) || reads != wantReads || !slices.Equal(ended, want) {
			t.Errorf("%s: endConnections() = %v after %d reads, ended %v, want %v, %d, %v", what, err, reads, ended, wantErr, wantReads, want)
		}
	}
	f.note(nil, content("10.0.70.5"))
	f.note(content("10.0.70.5"), content("10.0.70.5", "10.0.70.7"))
	expect("two ports", 1, nil, second)
	expect("no change", 0, nil)
	f.note(content("10.0.70.5", "10.0.70.7"), content())
	fails = unix.ENOMEM
	expect("a failure", 1, unix.ENOMEM, first)
	fails = nil
	expect("after a failure", 1, nil, first)
	f.note(content(), content("10.0.70.6"))
	fails = unix.ENOMEM
	expect("another failure", 1, unix.ENOMEM, first)
	f.note(content("10.0.70.6"), content())
	fails = nil
	expect("a change that is undone", 1, nil, second)
}

func TestChoose(t *testing.T) {
	r, err := ParseRange("20000-20002")
	if err != nil || r.String() != "20000-20002" {
		t.Fatal(r, err)
	}
	taken := map[uint16]bool{}
	free := func(port uint16) (bool, error) { return !taken[port], nil }
	for range 3 {
		port, err := r.Choose(1, free)
		if err != nil || !r.Has(port) || taken[port] {
			t.Errorf("Choose() = %d, %v", port, err)
		}
		taken[port] = true
	}
	if _, err := r.Choose(1, free); !errors.Is(err, ErrNoPort) {
		t.Errorf("with all ports taken: %v", err)
	}
	delete(taken, 20000)
	if port, err := r.Choose(1<<63+2, free); err != nil || port != 20000 {
		t.Errorf("Choose() = %d, %v", port, err)
	}
	if first, _ := (Range{1, 65535}).Choose(77, func(uint16) (bool, error) { return true, nil }); first != 78 {
		t.Errorf("the same seed gives %d", first)
	}
	for _, text := range []string{"", "20000", "0-5", "5-4", "1-65536", "a-b"} {
		if r, err := ParseRange(text); err == nil {
			t.Errorf("ParseRange(%q) = %s", text, r)
		}
	}
}
