// SPDX-License-Identifier: Apache-2.0

package sriov

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func newFolder(t *testing.T) *folder {
	t.Helper()
	b, err := openFolder(filepath.Join(t.TempDir(), "sriov"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestClaims(t *testing.T) {
	b := newFolder(t)
	if claims, err := b.list(); err != nil || len(claims) != 0 {
		t.Fatalf("list() = %v, %v without a folder", claims, err)
	}
	want := claim{
		BootID: b.bootID, Device: "0000:01:10.0", PF: "eth0", Index: 1, Owner: "bthv1", IfName: "eth0", NetNS: "/run/netns/a",
		Before: attributes{Name: "vf0", MAC: "02:00:00:00:00:01", MTU: 1400, Up: true, AdminMAC: "00:00:00:00:00:00", VLAN: 9, QoS: 3, Protocol: 0x8100, SpoofCheck: true, LinkState: 2},
	}
	if err := b.add(want); err != nil {
		t.Fatal(err)
	}
	// Another process sees it.
	again, err := openFolder(b.dir)
	if err != nil {
		t.Fatal(err)
	}
	claims, err := again.list()
	if diff := cmp.Diff([]claim{want}, claims); diff != "" || err != nil {
		t.Errorf("list() (-want +got): %v\n%s", err, diff)
	}
	// A process that was killed while it claimed leaves a file that is no claim.
	if err := os.WriteFile(filepath.Join(b.dir, ".0000:00:00.1.json.tmp-1"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if claims, err := b.list(); len(claims) != 1 || err != nil {
		t.Errorf("list() = %v, %v", claims, err)
	}
	for range 2 {
		if err := b.remove(want.Device); err != nil {
			t.Error(err)
		}
	}
	files, err := Files(b.dir)
	if diff := cmp.Diff([]string{filepath.Join(b.dir, ".0000:00:00.1.json.tmp-1"), b.dir}, files); diff != "" || err != nil {
		t.Errorf("Files() (-want +got): %v\n%s", err, diff)
	}
	if _, _, ok, err := New(b.dir).hold(b, want.Device); ok || err != nil {
		t.Errorf("hold() = %t, %v without a claim", ok, err)
	}
}

// After the node started again the cards are as new, and nobody has a function.
func TestClaimsOfEarlierStart(t *testing.T) {
	b := newFolder(t)
	if err := b.add(claim{Device: "0000:01:10.0", Owner: "bthv1"}); err != nil {
		t.Fatal(err)
	}
	b.bootID = "another start"
	if claims, err := b.list(); err != nil || len(claims) != 0 {
		t.Errorf("list() = %v, %v", claims, err)
	}
	if err := b.add(claim{Device: "0000:01:10.0", Owner: "bthv2"}); err != nil {
		t.Error(err)
	}
}

func TestDamagedClaim(t *testing.T) {
	b := newFolder(t)
	if err := b.add(claim{Device: "0000:01:10.2", Owner: "bthv1"}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(b.dir, "0000:01:10.0"+claimSuffix)
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	claims, err := b.list()
	if len(claims) != 1 || err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("list() = %v, %v, want the good claim and the file's name", claims, err)
	}
}

// One of many holds a claim at a time.
func TestHold(t *testing.T) {
	b := newFolder(t)
	if err := b.add(claim{Device: "0000:01:10.0"}); err != nil {
		t.Fatal(err)
	}
	functions := New(b.dir)
	var group sync.WaitGroup
	var holding atomic.Int32
	for range 8 {
		group.Go(func() {
			_, release, ok, err := functions.hold(b, "0000:01:10.0")
			if err != nil || !ok {
				t.Errorf("hold() = %t, %v", ok, err)
				return
			}
			if n := holding.Add(1); n != 1 {
				t.Errorf("%d hold the claim", n)
			}
			holding.Add(-1)
			release()
		})
	}
	group.Wait()
}
