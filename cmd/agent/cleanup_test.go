// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/cleanup"
	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/hostport"
	"github.com/berth-dev/berth/cni/socket/sockettest"
	"github.com/berth-dev/berth/cni/veth/wire"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// site is a node with an uplink, and the node's folders below root.
type site struct {
	*netnstest.Host
	t       *testing.T
	root    string
	options *Options
}

// newSite makes a node with objects of other programs that resemble Berth's.
func newSite(t *testing.T) *site {
	netnstest.Need(t)
	root := sockettest.Folder(t)
	o := newOptions()
	for _, path := range []*string{&o.Socket, &o.StateFile, &o.CNIConfDir, &o.CNIBinDir, &o.CNICacheDir} {
		*path = filepath.Join(root, *path)
	}
	s := &site{Host: netnstest.New(t), t: t, root: root, options: o}
	// The link-local address must not change while the test compares.
	s.Run(func() error { return os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0o644) })
	netnstest.NewWire(t).Plug(s.Host, "eth0", netip.MustParsePrefix("10.0.60.11/24"), netip.MustParsePrefix("2001:db8:60::11/64"))
	// The kernel gives the link its link-local address on its own time.
	netnstest.Eventually(t, func() error {
		if local := s.IP("-6", "route", "show", "table", "local", "dev", "eth0"); !strings.Contains(local, "local fe80:") {
			return fmt.Errorf("no link-local address yet:\n%s", local)
		}
		return nil
	})
	for _, args := range []string{
		"route add default via 10.0.60.1", "-6 route add default via 2001:db8:60::1",
		"rule add from 10.9.0.0/16 table 100 priority 32301", "route add 10.9.0.0/16 dev eth0 table 100 proto 97",
		"neigh add proxy 10.0.70.99 dev eth0", "link add bt0 type veth peer name bt1",
		"link add pod0 type veth peer name pod1", "link set pod0 addrgenmode none", "link set pod1 addrgenmode none", "link set pod0 up", "link set pod1 up",
		"route add 10.244.0.5 dev pod0", "-6 route add fd00:244::5 dev pod0",
	} {
		s.IP(strings.Fields(args)...)
	}
	netnstest.Eventually(t, func() error {
		if links := s.IP("link", "show", "type", "veth"); strings.Contains(links, "pod1@pod0: <NO-CARRIER") {
			return fmt.Errorf("the links are not up yet:\n%s", links)
		}
		return nil
	})
	s.Run(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "other-berth"})
		return conn.Flush()
	})
	s.write("etc/cni/net.d/10-other.conflist", `{"plugins":[{"type":"bridge"}]}`)
	s.write("opt/cni/bin/bridge", "#!/bin/sh\n")
	if err := os.MkdirAll(filepath.Join(root, "var/lib"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(root, "run"), 0o755); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *site) write(name, content string) {
	s.t.Helper()
	path := filepath.Join(s.root, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600)); err != nil {
		s.t.Fatal(err)
	}
}

// install makes an agent's objects on the node, and ends as if it were killed.
func (s *site) install() {
	s.t.Helper()
	image, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	from := s.t.TempDir()
	for _, name := range programs() {
		// The test is a program of Berth's module, too.
		if err := os.Symlink(image, filepath.Join(from, name)); err != nil {
			s.t.Fatal(err)
		}
	}
	o := s.options
	content, err := conf(o.Socket)
	err = errors.Join(err, install(from, o.CNIBinDir), putFile(filepath.Join(o.CNIConfDir, o.CNIConfName), bytes.NewReader(content), 0o644))
	if err != nil {
		s.t.Fatal(err)
	}
	s.write("etc/cni/net.d/00-berth.conflist.cilium_bak", string(content))
	s.write("opt/cni/bin/.berth-cni.tmp-123", "")
	s.write("run/berth/state.db.bak-20260101T000000Z", "")
	s.write("run/berth/certificate.pem", "uid")
	s.write("var/lib/berth/cni/0123.json", "{}")
	s.write("var/lib/berth/cni/.0123.json.tmp-1", "")
	s.openState()()
	s.write("run/berth/agent.sock", "")
	s.pod("a", "10.0.70.10", "2001:db8:70::10")
	withdrawn := s.pod("b", "10.0.70.11")
	s.Run(func() error { return newWirer(o, newJournal(o)).Withdraw(withdrawn) })
	// The link of a pod is gone, and no agent came to remove the rest.
	s.pod("c", "10.0.70.12", "2001:db8:70::12")
	s.pod("d", "10.98.0.5", "2001:db8:98::5")
	s.IP("link", "del", wire.HostLink("c", "eth0"))
	// A pod of the default network, whose link stays.
	s.Run(func() error {
		mappings, err := hostport.Mappings([]api.HostPort{{Protocol: "TCP", HostPort: 8080, ContainerPort: 80}},
			[]netip.Addr{netip.MustParseAddr("10.244.0.5"), netip.MustParseAddr("fd00:244::5")}, false)
		if err != nil {
			return err
		}
		_, err = new(hostport.Forwarder).Apply(mappings)
		return err
	})
	// Of another package than the package of pods' links.
	s.IP("link", "add", "bth-e1", "type", "ifb")
}

func (s *site) openState() (closeIt func()) {
	s.t.Helper()
	store, err := state.Open(s.options.StateFile)
	if err != nil {
		s.t.Fatal(err)
	}
	return func() {
		if err := store.Close(); err != nil {
			s.t.Fatal(err)
		}
	}
}

// pod wires a container.
func (s *site) pod(id string, addrs ...string) wire.Spec {
	s.t.Helper()
	spec := wire.Spec{ContainerID: id, IfName: "eth0", NetNS: netnstest.New(s.t).Path(), Uplink: "eth0", Advertised: map[netip.Addr]time.Time{}}
	for _, a := range addrs {
		addr := netip.MustParseAddr(a)
		bits := 24
		if addr.Is6() {
			bits = 64
		}
		subnet := netip.PrefixFrom(addr, bits).Masked()
		one := api.Address{Address: addr, Subnet: subnet, Gateway: subnet.Addr().Next()}
		if strings.Contains(a, "98") {
			one.Gateway, one.Routed = netip.Addr{}, true
			spec.Advertised[addr] = time.Now()
		}
		spec.Addresses = append(spec.Addresses, one)
	}
	spec.MAC = v1alpha1.MACOf(spec.Addresses[0].Address)
	s.Run(func() error {
		_, err := newWirer(s.options, newJournal(s.options)).Setup(spec)
		return err
	})
	return spec
}

// cleanup runs the command and returns its output.
func (s *site) cleanup(args ...string) (out string, refused bool, err error) {
	command := newCleanupCommand(&refused)
	var text bytes.Buffer
	command.SetOut(&text)
	command.SetErr(&text)
	command.SetArgs(append([]string{
		"--socket", s.options.Socket, "--state-file", s.options.StateFile, "--cni-conf-dir", s.options.CNIConfDir, "--cni-bin-dir", s.options.CNIBinDir, "--cni-cache-dir", s.options.CNICacheDir,
	}, args...))
	err = s.Try(func() error { return command.ExecuteContext(s.t.Context()) })
	return text.String(), refused, err
}

// look returns everything on the node that Berth could have changed.
func (s *site) look() map[string]string {
	s.t.Helper()
	seen := map[string]string{}
	for _, args := range []string{
		"-d link", "addr", "rule", "-6 rule", "route show table all", "-6 route show table all",
		"neigh show proxy", "-6 neigh show proxy", "neigh show nud permanent", "-6 neigh show nud permanent",
	} {
		for line := range strings.Lines(s.IP(strings.Fields(args)...)) {
			seen["ip "+args+": "+strings.TrimSpace(line)] = ""
		}
	}
	s.Run(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		tables, err := conn.ListTables()
		for _, t := range tables {
			seen[fmt.Sprintf("nftables: %d %s", t.Family, t.Name)] = ""
		}
		return errors.Join(err, settingsBelow("/proc/sys/net", seen))
	})
	err := filepath.WalkDir(s.root, func(path string, _ fs.DirEntry, err error) error {
		seen["file: "+path] = ""
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return seen
}

// settingsBelow reads kernel settings that can be read.
func settingsBelow(dir string, seen map[string]string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		// The kernel's counts there are no settings.
		if strings.Contains(path, "conntrack") {
			return nil
		}
		if value, err := os.ReadFile(path); err == nil {
			seen[path] = string(value)
		}
		return nil
	})
}

func TestCleanup(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	before := s.look()
	s.install()
	after := s.look()
	if cmp.Equal(before, after) {
		t.Fatal("nothing was installed")
	}

	// Nothing happens while an agent has the state file, or answers.
	closeIt := s.openState()
	if out, refused, err := s.cleanup(); !refused || !errors.Is(err, cleanup.ErrAgentRuns) {
		t.Errorf("beside an agent: %v\n%s", err, out)
	}
	closeIt()
	if err := os.Remove(s.options.Socket); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", s.options.Socket)
	if err != nil {
		t.Fatal(err)
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	if out, refused, err := s.cleanup(); !refused || !errors.Is(err, cleanup.ErrAgentRuns) {
		t.Errorf("beside an agent without its state file: %v\n%s", err, out)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	dry, refused, err := s.cleanup("--dry-run")
	if err != nil || refused {
		t.Errorf("--dry-run: %v\n%s", err, dry)
	}
	if diff := cmp.Diff(after, s.look()); diff != "" {
		t.Errorf("a cleanup that did nothing changed the node:\n%s", diff)
	}

	out, _, err := s.cleanup()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	t.Log(out)
	if diff := cmp.Diff(before, s.look()); diff != "" {
		t.Errorf("the node is not as before (-before +after):\n%s", diff)
	}
	for line := range strings.Lines(out) {
		if would := strings.Replace(line, "removed ", "would remove ", 1); !strings.Contains(dry, would) && !strings.HasPrefix(line, "removed folder") {
			t.Errorf("--dry-run did not say %q", would)
		}
	}
	if out, _, err = s.cleanup(); err != nil || out != "nothing of Berth is on this node\n" {
		t.Errorf("again: %v\n%s", err, out)
	}
}

// Pods that run keep their network, unless --force takes it.
func TestCleanupRefusesPods(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	before := s.look()
	s.install()
	store, err := state.Open(s.options.StateFile)
	if err != nil {
		t.Fatal(err)
	}
	s.write("var/run/netns/runs", "")
	addresses := []api.Address{{Address: netip.MustParseAddr("10.0.70.10"), Subnet: netip.MustParsePrefix("10.0.70.0/24"), Gateway: netip.MustParseAddr("10.0.70.1")}}
	for _, c := range []state.Container{
		{ContainerID: "a", NetNS: "/var/run/netns/runs", Pod: api.Pod{Namespace: "shop", Name: "web-0"}, Phase: state.Added, Attachments: []state.Attachment{{Addresses: addresses}}},
		{ContainerID: "b", NetNS: "/var/run/netns/gone", Pod: api.Pod{Namespace: "shop", Name: "ended"}, Phase: state.Added, Attachments: []state.Attachment{{Addresses: addresses}}},
		{ContainerID: "c", NetNS: "/var/run/netns/runs", Pod: api.Pod{Namespace: "shop", Name: "plain"}, Phase: state.Added, Attachments: []state.Attachment{{}}},
		{ContainerID: "d", NetNS: "/var/run/netns/runs", Pod: api.Pod{Namespace: "shop", Name: "cut-off"}, Phase: state.Withdrawn, Reason: "test", Attachments: []state.Attachment{{Addresses: addresses}}},
	} {
		c.IfName = "eth0"
		for i := range c.Attachments {
			c.Attachments[i].IfName, c.Attachments[i].Network, c.Attachments[i].Driver = "eth0", []byte(`{}`), nettype.Veth
		}
		c.Result = []byte(`{}`)
		if err := store.Put(&c); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	after := s.look()
	// The folder belongs to the test, and the node's root to this machine.
	root := []string{"--root", s.root, "--socket", "/run/berth/agent.sock", "--state-file", "/run/berth/state.db", "--cni-conf-dir", "/etc/cni/net.d", "--cni-bin-dir", "/opt/cni/bin", "--cni-cache-dir", "/var/lib/berth/cni"}
	out, refused, err := s.cleanup(root...)
	if err == nil || !refused || !strings.Contains(err.Error(), "lose their network: shop/web-0. ") {
		t.Errorf("beside a pod: %v\n%s", err, out)
	}
	if diff := cmp.Diff(after, s.look()); diff != "" {
		t.Errorf("a cleanup that was refused changed the node:\n%s", diff)
	}
	if out, refused, err := s.cleanup("--check"); refused || !errors.Is(err, cleanup.ErrLeft) {
		t.Errorf("--check: %v\n%s", err, out)
	}
	if diff := cmp.Diff(after, s.look()); diff != "" {
		t.Errorf("--check changed the node:\n%s", diff)
	}
	if out, _, err := s.cleanup("--force"); err != nil {
		t.Errorf("--force: %v\n%s", err, out)
	}
	if err := os.RemoveAll(filepath.Join(s.root, "var/run")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, s.look()); diff != "" {
		t.Errorf("the node is not as before (-before +after):\n%s", diff)
	}
	if out, _, err := s.cleanup("--check"); err != nil {
		t.Errorf("--check of a clean node: %v\n%s", err, out)
	}
}

// A folder that is a mount stays, and is nothing that is left.
func TestCleanupOfMountedFolder(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	dir := filepath.Dir(s.options.StateFile)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s.Run(func() error { return unix.Mount(dir, dir, "", unix.MS_BIND, "") })
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	s.install()
	if out, _, err := s.cleanup("--force"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if out, _, err := s.cleanup("--check"); err != nil {
		t.Errorf("--check: %v\n%s", err, out)
	}
	s.Run(func() error { return unix.Unmount(dir, 0) })
	if out, _, err := s.cleanup("--check"); !errors.Is(err, cleanup.ErrLeft) {
		t.Errorf("--check of a folder that is no mount any more: %v\n%s", err, out)
	}
}

// A cleanup that cannot remove one thing removes the others, and can be repeated.
func TestCleanupGoesOn(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	before := s.look()
	s.install()
	s.write("etc/cni/net.d/.00-berth.conflist.tmp-9/file", "")
	out, refused, err := s.cleanup()
	if err == nil || refused || !strings.Contains(out, "cannot remove file") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := os.Stat(s.options.StateFile); err != nil {
		t.Error(err)
	}
	if err := os.RemoveAll(filepath.Join(s.root, "etc/cni/net.d/.00-berth.conflist.tmp-9")); err != nil {
		t.Fatal(err)
	}
	if out, _, err := s.cleanup(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if diff := cmp.Diff(before, s.look()); diff != "" {
		t.Errorf("the node is not as before (-before +after):\n%s", diff)
	}
}

// Files of others that have the names of Berth's stay.
func TestCleanupLeavesOthers(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.write("etc/cni/net.d/00-berth.conflist", `{"plugins":[{"type":"bridge"}]}`)
	s.write("opt/cni/bin/berth-cni", "#!/bin/sh\n")
	s.write("var/lib/berth/notes", "")
	before := s.look()
	out, _, err := s.cleanup()
	if err != nil || strings.Count(out, "which is not Berth's") != 2 {
		t.Errorf("%v\n%s", err, out)
	}
	if diff := cmp.Diff(before, s.look()); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}

// A path that cannot be is an error at once, also where the cleanup stays: no node changes it.
func TestCleanupOfRelativePath(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.options.Socket = "run/berth/agent.sock"
	for _, args := range [][]string{nil, {"--stay"}} {
		if out, refused, err := s.cleanup(args...); err == nil || refused || !strings.Contains(err.Error(), "absolute") || out != "" && !strings.HasPrefix(out, "Error") {
			t.Errorf("cleanup %v: refused %v, %v\n%s", args, refused, err, out)
		}
	}
}
