// SPDX-License-Identifier: Apache-2.0

package hostservices

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/veth/wire"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/debian"
	"github.com/berth-dev/berth/test/lab"
)

// packages have the services and what starts them.
func packages() []string { return []string{"firewalld", "dbus-daemon"} }

// fetched is the folder of Debian's packages, in which the services run.
var fetched = sync.OnceValues(func() (string, error) { return fetch(context.Background()) })

// fetch returns the folder of the packages. The first call fetches 30 MB; later ones return at once. Several
// processes may call it at the same time.
func fetch(ctx context.Context) (string, error) {
	bin, err := lab.BinDir()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return "", err
	}
	// Another list of packages has another folder.
	dir := filepath.Join(bin, "hostservices-"+strings.Join(packages(), "-"))
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("wait for another process that fetches packages: %w", err)
	}
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	apt, err := os.MkdirTemp("", "berth-hostservices-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(apt)
	archives, err := debian.Fetch(ctx, os.Stderr, apt, debian.Request{Arch: runtime.GOARCH, Packages: packages()})
	if err != nil {
		return "", err
	}
	// The folder gets its name when all is in it.
	staged := dir + ".new"
	if err := os.RemoveAll(staged); err != nil {
		return "", err
	}
	if err := debian.Unpack(ctx, staged, archives); err != nil {
		return "", err
	}
	for name, text := range map[string]string{"etc/passwd": "root:x:0:0:root:/root:/bin/sh\n", "etc/group": "root:x:0:\n"} {
		if err := os.WriteFile(filepath.Join(staged, name), []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	if err := os.MkdirAll(filepath.Join(staged, "dev"), 0o755); err != nil {
		return "", err
	}
	if err := unix.Mknod(filepath.Join(staged, "dev/null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		return "", fmt.Errorf("make /dev/null: %w", err)
	}
	return dir, os.Rename(staged, dir)
}

// node is a namespace in which services run, with a pod of the pool network, and another host on the
// same layer 2 networks: eth0, which has the node's address, and eth1.
type node struct {
	*netnstest.Host
	t       *testing.T
	outside *netnstest.Host
	root    string
	// inside is the node's own folder, by its path in root.
	inside string
}

const (
	outside4, outside6 = "10.0.60.50", "2001:db8:60::50"
	pod4, pod6         = "10.0.70.5", "2001:db8:70::5"
	// far4 and far6 are addresses behind the other host, to which the node's default routes lead.
	far4, far6 = "192.0.2.50", "2001:db8:99::50"
)

func newNode(t *testing.T) *node {
	t.Helper()
	netnstest.Need(t)
	root, err := fetched()
	if err != nil {
		t.Fatal(err)
	}
	folder, err := os.MkdirTemp(filepath.Join(root, "tmp"), "node-") //nolint:usetesting // the services see the root of the packages only
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	inside, err := filepath.Rel(root, folder)
	if err != nil {
		t.Fatal(err)
	}
	n := &node{Host: netnstest.New(t), t: t, outside: netnstest.New(t), root: root, inside: "/" + inside}
	for _, h := range []*netnstest.Host{n.Host, n.outside} {
		for key, value := range map[string]string{"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1", "ipv6/conf/default/accept_dad": "0"} {
			h.Run(func() error { return os.WriteFile("/proc/sys/net/"+key, []byte(value), 0o644) })
		}
	}
	first, second := netnstest.NewWire(t), netnstest.NewWire(t)
	first.Plug(n.Host, "eth0", netip.MustParsePrefix("10.0.60.11/24"), netip.MustParsePrefix("2001:db8:60::11/64"))
	first.Plug(n.outside, "eth0", netip.MustParsePrefix(outside4+"/24"), netip.MustParsePrefix(outside6+"/64"))
	second.Plug(n.Host, "eth1")
	second.Plug(n.outside, "eth1")
	for _, address := range []string{far4 + "/32", far6 + "/128"} {
		n.outside.IP("addr", "add", address, "dev", "lo")
	}
	n.IP("route", "add", "default", "via", outside4)
	n.IP("-6", "route", "add", "default", "via", outside6)
	return n
}

// pod makes a pod of a pool network behind an uplink, of which the other host is the gateway.
func (n *node) pod(uplink string) (*netnstest.Host, wire.Spec) {
	n.t.Helper()
	n.outside.IP("addr", "add", "10.0.70.1/24", "dev", uplink)
	n.outside.IP("addr", "add", "2001:db8:70::1/64", "dev", uplink, "nodad")
	h := netnstest.New(n.t)
	spec := wire.Spec{ContainerID: "pod", IfName: "eth0", NetNS: h.Path(), Uplink: uplink, MAC: v1alpha1.MACOf(netip.MustParseAddr(pod4)), Addresses: []api.Address{
		{Address: netip.MustParseAddr(pod4), Subnet: netip.MustParsePrefix("10.0.70.0/24"), Gateway: netip.MustParseAddr("10.0.70.1")},
		{Address: netip.MustParseAddr(pod6), Subnet: netip.MustParsePrefix("2001:db8:70::/64"), Gateway: netip.MustParseAddr("2001:db8:70::1")},
	}}
	n.Run(func() error { _, err := wire.New("").Setup(spec); return err })
	return h, spec
}

// command returns a command that runs a program of the packages, and ends with the test.
func (n *node) command(program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(n.t.Context(), program, args...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin", "DBUS_SYSTEM_BUS_ADDRESS=" + bus}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: n.root}
	return cmd
}

// start runs a service until the test ends.
func (n *node) start(program string, args ...string) {
	n.t.Helper()
	cmd := n.command(program, args...)
	log, err := os.Create(filepath.Join(n.t.TempDir(), "log"))
	if err != nil {
		n.t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = log, log
	n.Run(cmd.Start)
	n.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && n.t.Failed() {
			n.t.Logf("%s:\n%s", filepath.Base(program), text)
		}
	})
}

// run runs a program of the packages and returns its output.
func (n *node) run(program string, args ...string) (string, error) {
	var out []byte
	err := n.Try(func() (err error) {
		out, err = n.command(program, args...).CombinedOutput()
		return err
	})
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// bus is the address of the bus of services; an abstract one belongs to the network namespace.
const bus = "unix:abstract=berth-bus"
