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
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/ipam/seedtest"
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

func container(id string, phase Phase) *Container {
	return &Container{
		ContainerID: id, IfName: "eth0", NetNS: "/run/netns/" + id, Phase: phase,
		Pod:          api.Pod{Namespace: "default", Name: "web-0", UID: "u1"},
		Args:         "K8S_POD_NAME=web-0",
		Capabilities: map[string]json.RawMessage{"portMappings": json.RawMessage(`[]`)},
		Attachments: []Attachment{
			{
				IfName: "eth0", Driver: "veth",
				Addresses:    []api.Address{{Address: netip.MustParseAddr("10.0.70.5"), Subnet: netip.MustParsePrefix("10.0.70.0/24")}},
				Network:      json.RawMessage(`{"name":"n"}`),
				Capabilities: map[string]json.RawMessage{"berthAddresses": json.RawMessage(`["x"]`)},
			},
			{IfName: "net1", Network: json.RawMessage(`{"name":"m"}`), Result: json.RawMessage(`{"ips":[]}`)},
		},
	}
}

// TestModelParallel runs random operations of several workers. Each has containers of
// its own, as calls hold the locks of theirs. Then the test opens the file again and
// compares it with the workers' maps.
func TestModelParallel(t *testing.T) {
	seed := seedtest.Seed(t)
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
					a := container(fmt.Sprintf("c%d-%d", worker, r.IntN(4)), phases[r.IntN(len(phases))])
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
					if got := s.Get(a.Key()); !cmp.Equal(a, got, netipValues) {
						t.Errorf("Get() = %v", got)
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

// A change sees the writes of changes before it, and an error of one stops no other.
func TestChange(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.db")
	s := open(t, path)
	refused := errors.New("no")
	var group sync.WaitGroup
	for i := range 20 {
		group.Go(func() {
			if err := s.Put(container(fmt.Sprint("put", i), Added)); err != nil {
				t.Error(err)
			}
		})
		group.Go(func() {
			err := s.Change(func(records map[Key]*Container) ([]*Container, error) {
				for _, c := range records {
					c.Phase = Deleting // a copy
				}
				count := container("count", Added)
				if old := records[count.Key()]; old != nil {
					count.Reason = old.Reason
				}
				count.Reason += "x"
				return []*Container{count, container(fmt.Sprint("change", i), Added)}, nil
			})
			if err != nil {
				t.Error(err)
			}
		})
		group.Go(func() {
			if err := s.Change(func(map[Key]*Container) ([]*Container, error) { return nil, refused }); !errors.Is(err, refused) {
				t.Errorf("Change() = %v", err)
			}
		})
	}
	group.Wait()
	invalid := container("half", Added)
	invalid.Attachments = nil
	if err := s.Change(func(map[Key]*Container) ([]*Container, error) {
		return []*Container{container("other half", Added), invalid}, nil
	}); err == nil {
		t.Error("Change() writes an invalid record")
	}
	if now, err := s.Update(Key{"put1", "eth0"}, func(c *Container) bool { c.Phase = Withdrawn; return true }); err != nil || now.Phase != Withdrawn {
		t.Errorf("Update() = %v, %v", now, err)
	}
	if now, err := s.Update(Key{"nobody", "eth0"}, func(*Container) bool { return true }); err != nil || now != nil {
		t.Errorf("Update() of a record that is gone = %v, %v", now, err)
	}
	if got := s.Get(Key{"count", "eth0"}).Reason; got != strings.Repeat("x", 20) {
		t.Errorf("counted %q", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	got := phasesOf(t, path)
	if len(got) != 41 || got[Key{"put1", "eth0"}] != Withdrawn || got[Key{"put2", "eth0"}] != Added {
		t.Errorf("the file has %v", got)
	}
}

func phasesOf(t *testing.T, path string) map[Key]Phase {
	t.Helper()
	s := open(t, path)
	got := map[Key]Phase{}
	for _, a := range s.List() {
		got[a.Key()] = a.Phase
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return got
}

// TestModelSerial compares every operation with a map.
func TestModelSerial(t *testing.T) {
	r := rand.New(rand.NewPCG(seedtest.Seed(t), 0))
	s := open(t, filepath.Join(t.TempDir(), "agent.db"))
	model := map[Key]Phase{}
	phases := []Phase{Adding, Added, Deleting, Withdrawn}
	for range 200 {
		a := container(fmt.Sprintf("c%d", r.IntN(6)), phases[r.IntN(len(phases))])
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
		got := map[Key]Phase{}
		for _, a := range s.List() {
			got[a.Key()] = a.Phase
		}
		if diff := cmp.Diff(model, got); diff != "" {
			t.Fatalf("(-model +store):\n%s", diff)
		}
	}
}

// bolt changes a file as another program would.
func bolt(t *testing.T, path string, fill func(tx *bbolt.Tx) error) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Update(fill), db.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestOpenRefuses(t *testing.T) {
	layout := func(tx *bbolt.Tx, magic, schema string) error {
		meta, err := tx.CreateBucket(bucketMeta)
		if err != nil {
			return err
		}
		_, err = tx.CreateBucket(bucketContainers)
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
			if err := errors.Join(s.Put(container("c", Added)), s.Close(), os.Truncate(path, 5000)); err != nil {
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
				return errors.Join(layout(tx, magic, schema), tx.Bucket(bucketContainers).Put(Key{"c", "eth0"}.bytes(), []byte("{")))
			})
		},
		"record under another key": func(t *testing.T, path string) {
			bolt(t, path, func(tx *bbolt.Tx) error {
				value, err := json.Marshal(container("c", Added))
				return errors.Join(err, layout(tx, magic, schema), tx.Bucket(bucketContainers).Put(Key{"d", "eth0"}.bytes(), value))
			})
		},
		"no attachment": func(t *testing.T, path string) {
			bolt(t, path, func(tx *bbolt.Tx) error {
				c := container("c", Added)
				c.Attachments = nil
				value, err := json.Marshal(c)
				return errors.Join(err, layout(tx, magic, schema), tx.Bucket(bucketContainers).Put(Key{"c", "eth0"}.bytes(), value))
			})
		},
		"two attachments for one interface": func(t *testing.T, path string) {
			bolt(t, path, func(tx *bbolt.Tx) error {
				c := container("c", Added)
				c.Attachments[1].IfName = "eth0"
				value, err := json.Marshal(c)
				return errors.Join(err, layout(tx, magic, schema), tx.Bucket(bucketContainers).Put(Key{"c", "eth0"}.bytes(), value))
			})
		},
		"floating IPs without a driver": func(t *testing.T, path string) {
			bolt(t, path, func(tx *bbolt.Tx) error {
				c := container("c", Added)
				c.Attachments[0].Driver = ""
				value, err := json.Marshal(c)
				return errors.Join(err, layout(tx, magic, schema), tx.Bucket(bucketContainers).Put(Key{"c", "eth0"}.bytes(), value))
			})
		},
		"unknown phase": func(t *testing.T, path string) {
			bolt(t, path, func(tx *bbolt.Tx) error {
				value, err := json.Marshal(container("c", "dreaming"))
				return errors.Join(err, layout(tx, magic, schema), tx.Bucket(bucketContainers).Put(Key{"c", "eth0"}.bytes(), value))
			})
		},
	}
	// Another version, or another program, can read the rest.
	damaged := map[string]bool{"text": true, "cut off": true, "unreadable record": true}
	for name, prepare := range cases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "agent.db")
			prepare(t, path)
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Open(path); !errors.Is(err, ErrUnusable) || errors.Is(err, ErrDamaged) != damaged[name] {
				t.Errorf("Open() = %v, want ErrUnusable, and ErrDamaged: %v", err, damaged[name])
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

// Records of a newer agent have fields that this one does not know: it reads the others, and leaves
// the field in records that it does not write.
func TestFieldsOfANewerAgent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.db")
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"read", "written"} {
		if err := s.Put(container(id, Added)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	const newer = `"ofANewerAgent":true`
	bolt(t, path, func(tx *bbolt.Tx) error {
		records := tx.Bucket(bucketContainers)
		for _, id := range []string{"read", "written"} {
			key := Key{id, "eth0"}.bytes()
			value := strings.Replace(string(records.Get(key)), `"ifName"`, newer+`,"ifName"`, 2)
			if err := records.Put(key, []byte(value)); err != nil {
				return err
			}
		}
		return nil
	})
	if s, err = Open(path); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"read", "written"} {
		if diff := cmp.Diff(container(id, Added), s.Get(Key{id, "eth0"}), netipValues); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	if err := s.Put(container("written", Deleting)); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	check(t, path)
	bolt(t, path, func(tx *bbolt.Tx) error {
		for id, want := range map[string]int{"read": 2, "written": 0} {
			if value := string(tx.Bucket(bucketContainers).Get(Key{id, "eth0"}.bytes())); strings.Count(value, newer) != want {
				t.Errorf("record %s has the newer agent's fields not %d times: %s", id, want, value)
			}
		}
		return nil
	})
}

// A caller may change the records that it gets.
func TestCopies(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "agent.db"))
	c := container("c", Added)
	if err := s.Put(c); err != nil {
		t.Fatal(err)
	}
	c.Attachments[0].Addresses[0].VLAN = 7
	for range 2 {
		for _, got := range []*Container{s.Get(c.Key()), s.List()[0]} {
			if diff := cmp.Diff(container("c", Added), got, netipValues); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			got.Attachments[0].Addresses[0].VLAN, got.Attachments[0].Network = 7, nil
			got.Capabilities["mac"], got.Attachments[0].Capabilities["mac"] = nil, nil
		}
	}
}

// A key that bbolt refuses leaves nothing.
func TestLongKey(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "agent.db"))
	long := strings.Repeat("c", bbolt.MaxKeySize)
	if err := s.Put(container(long, Added)); !errors.Is(err, bolterrors.ErrKeyTooLarge) {
		t.Errorf("Put() = %v", err)
	}
	if err := s.Delete(Key{ContainerID: long, IfName: "eth0"}); err != nil {
		t.Errorf("Delete() = %v", err)
	}
	if left := s.List(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// The records of another start of the kernel are gone, records of the present one stay.
func TestEndBoot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.db")
	for _, step := range []struct {
		boot  string
		ended int
		left  []string
	}{{"a", 0, []string{"0"}}, {"a", 0, []string{"0", "1"}}, {"b", 2, []string{"2"}}, {"b", 0, []string{"2", "3"}}, {"a", 2, []string{"4"}}} {
		s := open(t, path)
		if ended, err := s.EndBoot(step.boot); ended != step.ended || err != nil {
			t.Errorf("EndBoot(%q) = %d, %v, want %d", step.boot, ended, err, step.ended)
		}
		if err := errors.Join(s.Put(container(step.left[len(step.left)-1], Added)), s.Close()); err != nil {
			t.Fatal(err)
		}
		got := slices.Sorted(func(yield func(string) bool) {
			for key := range phasesOf(t, path) {
				if !yield(key.ContainerID) {
					return
				}
			}
		})
		if diff := cmp.Diff(step.left, got); diff != "" {
			t.Errorf("after boot %s (-want +got):\n%s", step.boot, diff)
		}
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
		value, err := json.Marshal(container("c", phase))
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
