// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/netfilter"
)

// mountMemory makes a folder that is in memory until the test ends, of at most size as in tmpfs(5).
func mountMemory(t *testing.T, dir, size string) {
	t.Helper()
	if err := errors.Join(os.Mkdir(dir, 0o700), unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0700,size="+size)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
}

// ownDisk starts the agent anew with its state file on a file system of its own.
func (n *node) ownDisk(size string) (dir string) {
	n.t.Helper()
	dir = filepath.Join(n.dir, "disk")
	mountMemory(n.t, dir, size)
	n.stop()
	n.args = append(n.args, "--state-file", dir+"/agent.db")
	n.start()
	return dir
}

// fill leaves no room in a folder's file system, and returns the file that takes it.
func fill(t *testing.T, dir string) (file string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "others"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	page := make([]byte, 4096)
	for err == nil {
		_, err = f.Write(page)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	return f.Name()
}

// There is no room at all for the next record. ADD says why and leaves nothing; the pod that
// runs keeps its network; a pod that loses its address is silent, though DEL cannot be noted. With
// room again all is as if nothing had been.
func TestDiskWithoutRoom(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	n := net.newNode(t, "no-room", "10.0.60.11")
	disk := n.ownDisk("512k")
	before := n.kernel()
	ofPod := func(address string) *container {
		pod := createPod(t, n.name, "no-room-"+strings.ReplaceAll(address, ".", "-"), address)
		bind(t, address, pod)
		return newContainer(t, pod.Name, pod)
	}
	stays, goes := ofPod("10.70.27.5"), ofPod("10.70.27.6")
	n.mustAdd(stays)
	n.mustAdd(goes)
	file := fill(t, disk)
	var refused error
	var added []*container
	for i := 0; refused == nil && i < 60; i++ {
		c := ofPod(fmt.Sprintf("10.70.27.%d", 100+i))
		if _, refused = n.add(c); refused == nil {
			added = append(added, c)
		}
	}
	if refused == nil || !strings.Contains(refused.Error(), "no space left on device") || !strings.Contains(refused.Error(), "record") {
		t.Errorf("ADD without room: %v", refused)
	}
	if n.carries(fmt.Sprintf("10.70.27.%d", 100+len(added))) {
		t.Error("the ADD that failed left something")
	}
	if err := n.del(goes); err != nil && !strings.Contains(err.Error(), "no space left on device") {
		t.Errorf("DEL without room: %v", err)
	}
	deletePod(t, goes.pod.Name)
	eventually(t, func() error { return n.withdrawn("10.70.27.6") })
	ping(t, net.client, "10.70.27.5")
	n.kill()
	n.start()
	eventually(t, func() error { return n.withdrawn("10.70.27.6") })
	if err := n.check(stays); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	for _, c := range append(added, goes, stays) {
		n.mustDel(c)
	}
	n.becomes(before)
}

// The API server is away while the runtime ends containers: they end all the same, new ones
// are told why they cannot begin, and the agent catches up with what it missed.
func TestAPIAway(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	n := net.newNode(t, "api-away", "10.0.60.11")
	before := n.kernel()
	ofPod := func(address string) *container {
		pod := createPod(t, n.name, "api-away-"+strings.ReplaceAll(address, ".", "-")+"x", address)
		if address != "" {
			bind(t, address, pod)
		}
		return newContainer(t, pod.Name, pod)
	}
	stays, ends, forced, ordinary, late := ofPod("10.70.28.5"), ofPod("10.70.28.6"), ofPod("10.70.28.7"), ofPod(""), ofPod("10.70.28.8")
	ordinary.ports = []map[string]any{tcp(8080, 80)}
	for _, c := range []*container{stays, ends, forced, ordinary} {
		n.mustAdd(c)
	}
	n.IP("route", "add", "blackhole", apiAddress+"/32")
	n.mustDel(ends)
	n.mustDel(ordinary)
	if err := errors.Join(n.withdrawn("10.70.28.6"), refuses(net.client, "10.0.60.11:8080")); err != nil {
		t.Error(err)
	}
	n.kill()
	n.launch()
	eventually(t, func() error {
		if !strings.Contains(n.agent.text(), "Cannot check the floating IPs of this node yet") {
			return errors.New("the agent has not found out that the API does not answer")
		}
		return nil
	})
	if _, err := n.add(late); err == nil || !strings.Contains(err.Error(), late.pod.Name) {
		t.Errorf("ADD without the API: %v", err)
	}
	if n.carries("10.70.28.8") {
		t.Error("the ADD that failed left something")
	}
	ping(t, net.client, "10.70.28.5")
	// Rules that another program deletes are back without the API: nobody may send as another pod
	// meanwhile.
	if _, err := n.Command("nft", "flush", "ruleset"); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		return n.Try(func() error {
			sources, err := netfilter.Sources()
			if err == nil && len(sources) != 2 {
				err = fmt.Errorf("the node filters the sources %v, want those of two pods", sources)
			}
			return err
		})
	})
	for _, c := range []*container{ends, forced, ordinary} {
		deletePod(t, c.pod.Name)
	}
	n.IP("route", "del", "blackhole", apiAddress+"/32")
	eventually(t, func() error { return n.withdrawn("10.70.28.7") })
	n.ready()
	ping(t, net.client, "10.70.28.5")
	n.mustAdd(late)
	ping(t, net.client, "10.70.28.8")
	for _, c := range []*container{stays, forced, late} {
		n.mustDel(c)
	}
	n.becomes(before)
}
