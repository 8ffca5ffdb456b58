// SPDX-License-Identifier: Apache-2.0

package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.etcd.io/bbolt"

	"github.com/berth-dev/berth/agent/api"
)

var netipValues = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

func open(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		check(t, path)
	})
	return s
}

// check opens the file again. Every test ends with it.
func check(t *testing.T, path string) {
	t.Helper()
	s, err := Open(path)
	if err != nil {
		t.Errorf("the file this test leaves: %v", err)
		return
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func attachment(container string, phase Phase) *Attachment {
	return &Attachment{
		ContainerID: container, IfName: "eth0", NetNS: "/run/netns/" + container, Phase: phase,
		Pod:          api.Pod{Namespace: "default", Name: "web-0", UID: "u1"},
		Addresses:    []api.Address{{Address: netip.MustParseAddr("10.0.70.5"), Subnet: netip.MustParsePrefix("10.0.70.0/24")}},
		Network:      json.RawMessage(`{"name":"n"}`),
		Capabilities: map[string]json.RawMessage{"berthAddresses": json.RawMessage(`["x"]`)},
	}
}

// TestModelParallel runs random operations of several workers. Each has containers of
// its own, as calls hold the locks of theirs. Then the test opens the file again and
// compares it with the workers' maps.
func TestModelParallel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	path := filepath.Join(t.TempDir(), "agent.db")
	phases := []Phase{Adding, Added, Deleting, Withdrawn}
	models := [4]map[Key]Phase{{}, {}, {}, {}}
	for round := range 4 {
		s, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		var group sync.WaitGroup
		for worker, model := range models {
			group.Go(func() {
				r := rand.New(rand.NewPCG(seed, uint64(round*10+worker)))
				for range 25 {
					a := attachment(fmt.Sprintf("c%d-%d", worker, r.IntN(4)), phases[r.IntN(len(phases))])
					if r.IntN(3) == 0 {
						if err := s.Delete(a.Key()); err != nil {
							t.Error(err)
						}
						delete(model, a.Key())
						continue
					}
					if err := s.Put(a); err != nil {
						t.Error(err)
					}
					model[a.Key()] = a.Phase
					if got, err := s.Get(a.Key()); err != nil || !cmp.Equal(a, got, netipValues) {
						t.Errorf("Get() = %v, %v", got, err)
					}
				}
			})
		}
		group.Wait()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		want := map[Key]Phase{}
		for _, model := range models {
			maps.Copy(want, model)
		}
		if diff := cmp.Diff(want, phasesOf(t, path)); diff != "" {
			t.Fatalf("round %d (-model +file):\n%s", round, diff)
		}
	}
}

func phasesOf(t *testing.T, path string) map[Key]Phase {
	t.Helper()
	s := open(t, path)
	all, err := s.List()
	if err != nil {
		t.Fatal(err)
	}
	got := map[Key]Phase{}
	for _, a := range all {
		got[a.Key()] = a.Phase
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return got
}

// TestModelSerial compares every operation with a map.
func TestModelSerial(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	s := open(t, filepath.Join(t.TempDir(), "agent.db"))
	model := map[Key]Phase{}
	phases := []Phase{Adding, Added, Deleting, Withdrawn}
	for range 200 {
		a := attachment(fmt.Sprintf("c%d", r.IntN(6)), phases[r.IntN(len(phases))])
		switch r.IntN(3) {
		case 0:
			if err := s.Delete(a.Key()); err != nil {
				t.Fatal(err)
			}
			delete(model, a.Key())
		default:
			if err := s.Put(a); err != nil {
				t.Fatal(err)
			}
			model[a.Key()] = a.Phase
		}
		all, err := s.List()
		if err != nil {
			t.Fatal(err)
		}
		got := map[Key]Phase{}
		for _, a := range all {
			got[a.Key()] = a.Phase
		}
		if diff := cmp.Diff(model, got); diff != "" {
			t.Fatalf("(-model +store):\n%s", diff)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	bolt := func(t *testing.T, path string, fill func(tx *bbolt.Tx) error) {
		db, err := bbolt.Open(path, 0o600, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(db.Update(fill), db.Close()); err != nil {
			t.Fatal(err)
		}
	}
	layout := func(tx *bbolt.Tx, magic, schema string) error {
		meta, err := tx.CreateBucket(bucketMeta)
		if err != nil {
			return err
		}
		_, err = tx.CreateBucket(bucketAttachments)
		return errors.Join(err, meta.Put(keyMagic, []byte(magic)), meta.Put(keySchema, []byte(schema)))
	}
	cases := map[string]func(t *testing.T, path string){
		"text": func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte("no database"), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"cut off": func(t *testing.T, path string) {
			s, err := Open(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(s.Put(attachment("c", Added)), s.Close(), os.Truncate(path, 5000)); err != nil {
				t.Fatal(err)
			}
		},
		"of another program": func(t *testing.T, path string) {
			bolt(t, path, func(tx *bbolt.Tx) error { _, err := tx.CreateBucket([]byte("v1")); return err })
		},
		"wrong magic": func(t *testing.T, path string) {
			bolt(t, path, func(tx *bbolt.Tx) error { return layout(tx, "other", schema) })
		},
		"newer schema": func(t *testing.T, path string) {
			bolt(t, path, func(tx *bbolt.Tx) error { return layout(tx, magic, "2") })
		},
		"unreadable record": func(t *testing.T, path string) {
			bolt(t, path, func(tx *bbolt.Tx) error {
				return errors.Join(layout(tx, magic, schema), tx.Bucket(bucketAttachments).Put(Key{"c", "eth0"}.bytes(), []byte("{")))
			})
		},
		"record under another key": func(t *testing.T, path string) {
			bolt(t, path, func(tx *bbolt.Tx) error {
				value, err := json.Marshal(attachment("c", Added))
				return errors.Join(err, layout(tx, magic, schema), tx.Bucket(bucketAttachments).Put(Key{"d", "eth0"}.bytes(), value))
			})
		},
		"unknown phase": func(t *testing.T, path string) {
			bolt(t, path, func(tx *bbolt.Tx) error {
				value, err := json.Marshal(attachment("c", "dreaming"))
				return errors.Join(err, layout(tx, magic, schema), tx.Bucket(bucketAttachments).Put(Key{"c", "eth0"}.bytes(), value))
			})
		},
	}
	for name, prepare := range cases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "agent.db")
			prepare(t, path)
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Open(path); !errors.Is(err, ErrUnusable) {
				t.Errorf("Open() = %v, want ErrUnusable", err)
			}
			after, err := os.ReadFile(path)
			if err != nil || !cmp.Equal(before, after) {
				t.Errorf("Open changed a file that it refuses (%v)", err)
			}
			aside, err := MoveAside(path, time.Unix(0, 0))
			if err != nil || aside != path+".bak-19700101T000000Z" {
				t.Errorf("MoveAside() = %q, %v", aside, err)
			}
			check(t, path)
		})
	}
}

func TestOpenLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "agent.db")
	open(t, path)
	if _, err := Open(path); !errors.Is(err, ErrLocked) {
		t.Errorf("Open() = %v, want ErrLocked", err)
	}
}

func TestMoveAsideWithoutFile(t *testing.T) {
	if aside, err := MoveAside(filepath.Join(t.TempDir(), "agent.db"), time.Now()); err != nil || aside != "" {
		t.Errorf("MoveAside() = %q, %v", aside, err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, phase := range []Phase{Adding, "x"} {
		value, err := json.Marshal(attachment("c", phase))
		if err != nil {
			f.Fatal(err)
		}
		f.Add([]byte("c\x00eth0"), value)
	}
	f.Fuzz(func(t *testing.T, key, value []byte) {
		a, err := decode(key, value)
		if err == nil && string(a.Key().bytes()) != string(key) {
			t.Errorf("record %q under key %q", a.Key().bytes(), key)
		}
	})
}
