// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// busy keeps transactions of the store from the disk until release is called.
func busy(t *testing.T, s *Store) (release func()) {
	t.Helper()
	tx, err := s.db.Begin(true)
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := tx.Rollback(); err != nil {
			t.Error(err)
		}
	}
}

// survivors returns what the next process finds where this one ends now: copies of the files.
func survivors(t *testing.T, path string) (copied string) {
	t.Helper()
	copied = filepath.Join(t.TempDir(), "agent.db")
	for _, suffix := range []string{"", aheadSuffix} {
		raw, err := os.ReadFile(path + suffix)
		if err == nil {
			err = os.WriteFile(copied+suffix, raw, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return copied
}

func mustPut(t *testing.T, s *Store, all ...*Container) {
	t.Helper()
	for _, c := range all {
		if err := s.Put(c); err != nil {
			t.Fatal(err)
		}
	}
}

// A record that was written early is there for the next process, also where the disk was never
// written.
func TestEarly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.db")
	s := open(t, path)
	mustPut(t, s, container("old", Added))
	release := busy(t, s)
	written, err := s.PutEarly(container("new", Adding))
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Get(Key{"new", "eth0"}); got == nil || got.Phase != Adding {
		t.Errorf("the store has %v", got)
	}
	killed := survivors(t, path)
	release()
	for range 2 {
		if err := written(); err != nil {
			t.Error(err)
		}
	}
	for range 2 {
		if got := phasesOf(t, killed); got[Key{"new", "eth0"}] != Adding || got[Key{"old", "eth0"}] != Added || len(got) != 2 {
			t.Errorf("the next process has %v", got)
		}
	}

	release = busy(t, s)
	err = s.ChangeEarly(func(records map[Key]*Container) ([]*Container, error) {
		c, old := records[Key{"new", "eth0"}], records[Key{"old", "eth0"}]
		c.Phase, old.Phase = Added, Withdrawn
		return []*Container{c, old}, nil
	})
	if err != nil {
		t.Error(err)
	}
	killed = survivors(t, path)
	release()
	if got := phasesOf(t, killed); got[Key{"new", "eth0"}] != Added || got[Key{"old", "eth0"}] != Withdrawn || len(got) != 2 {
		t.Errorf("the next process has %v", got)
	}
	if err := s.Put(container("last", Added)); err != nil {
		t.Fatal(err)
	}
	release = busy(t, s)
	if err := s.DeleteEarly(Key{"new", "eth0"}); err != nil {
		t.Error(err)
	}
	killed = survivors(t, path)
	release()
	if got := phasesOf(t, killed); len(got) != 2 || got[Key{"new", "eth0"}] != "" {
		t.Errorf("the next process has %v", got)
	}
	refused := errors.New("no")
	if err := s.ChangeEarly(func(map[Key]*Container) ([]*Container, error) { return nil, refused }); !errors.Is(err, refused) {
		t.Errorf("ChangeEarly() = %v", err)
	}
	if err := s.ChangeEarly(func(map[Key]*Container) ([]*Container, error) { return nil, nil }); err != nil {
		t.Errorf("ChangeEarly() = %v", err)
	}
}

// Whoever has waited for an early change writes the next one early, too.
func TestEarlyOneAfterAnother(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "agent.db"))
	for range 100 {
		written, err := s.PutEarly(container("c", Adding))
		if err == nil {
			err = written()
		}
		if err != nil {
			t.Fatal(err)
		}
		s.mu.Lock()
		writing := s.writing
		s.mu.Unlock()
		if writing {
			t.Fatal("the store has told the disk's answer, and still writes")
		}
	}
}

// While the disk is written, an early change waits for it with the others, and sees what they
// write.
func TestEarlyWhileBusy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.db")
	s := open(t, path)
	release := busy(t, s)
	if _, err := s.PutEarly(container("first", Adding)); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 2)
	go func() { done <- s.Put(container("second", Added)) }()
	go func() {
		written, err := s.PutEarly(container("third", Added))
		if err == nil {
			err = written()
		}
		done <- err
	}()
	select {
	case err := <-done:
		t.Errorf("returned before the disk was written: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	release()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := phasesOf(t, path); len(got) != 3 {
		t.Errorf("the file has %v", got)
	}
}

// What the log has is repeated once, before all that was written later, and never in another file.
func TestStaleLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.db")
	s := open(t, path)
	release := busy(t, s)
	written, err := s.PutEarly(container("c", Adding))
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(path + aheadSuffix)
	if err != nil {
		t.Fatal(err)
	}
	release()
	if err := errors.Join(written(), s.DeleteEarly(Key{"c", "eth0"}), s.Close()); err != nil {
		t.Fatal(err)
	}
	// The power failed: of the later writes the log's were lost.
	if err := os.WriteFile(path+aheadSuffix, log, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := phasesOf(t, path); len(got) != 0 {
		t.Errorf("a change was repeated that was undone: %v", got)
	}
	if err := errors.Join(os.Remove(path), os.WriteFile(path+aheadSuffix, log, 0o600)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got := phasesOf(t, path); len(got) != 0 {
			t.Errorf("a new file has the records of another: %v", got)
		}
	}
}

// After a loss of power the log has any part of what was written. The records that were on disk are
// there, and the last one is there whole or not at all.
func TestTornLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.db")
	s := open(t, path)
	mustPut(t, s, container("old", Added))
	release := busy(t, s)
	if _, err := s.PutEarly(container("new", Adding)); err != nil {
		t.Fatal(err)
	}
	whole := survivors(t, path)
	release()
	log, err := os.ReadFile(whole + aheadSuffix)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.ReadFile(whole)
	if err != nil {
		t.Fatal(err)
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	used := len(log)
	for used > 0 && log[used-1] == 0 {
		used--
	}
	for i := range 60 {
		torn := append([]byte(nil), log...)
		switch {
		case i == 0: // whole
		case i%3 == 0:
			torn = torn[:r.IntN(used)]
		case i%3 == 1:
			clear(torn[r.IntN(used):])
		default:
			torn[r.IntN(used)] ^= 1 << r.IntN(8)
		}
		if err := errors.Join(os.WriteFile(whole, file, 0o600), os.WriteFile(whole+aheadSuffix, torn, 0o600)); err != nil {
			t.Fatal(err)
		}
		got := phasesOf(t, whole)
		if got[Key{"old", "eth0"}] != Added || len(got) != 1+min(1, len(got[Key{"new", "eth0"}])) {
			t.Fatalf("damage %d: the file has %v", i, got)
		}
		if _, there := got[Key{"new", "eth0"}]; there != (i == 0) {
			t.Fatalf("damage %d: the record is there: %v", i, there)
		}
	}
}

// A change that the disk refuses is there for the next process, and goes to disk with the next
// change that finds room.
func TestEarlyDiskWithoutRoom(t *testing.T) {
	dir := ownDisk(t, "256k")
	path := filepath.Join(dir, "agent.db")
	s := open(t, path)
	file := fill(t, dir)
	var all []Key
	var refused error
	for i := 0; refused == nil && i < 300; i++ {
		c := container(string(rune('a'+i%26))+string(rune('a'+i/26)), Added)
		c.Args = string(make([]byte, 4096))
		written, err := s.PutEarly(c)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c.Key())
		refused = written()
	}
	if !errors.Is(refused, unix.ENOSPC) {
		t.Fatalf("the disk is full: %v", refused)
	}
	if _, err := s.PutEarly(container("next", Adding)); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("PutEarly() = %v", err)
	}
	has := func(s *Store) {
		t.Helper()
		if got := len(s.List()); got != len(all) || s.Get(all[len(all)-1]) == nil {
			t.Errorf("%d records of %d are there", got, len(all))
		}
	}
	has(s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, path)
	has(s)
	if err := s.Change(func(map[Key]*Container) ([]*Container, error) { return nil, nil }); err != nil {
		t.Errorf("Change() of nothing = %v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	mustPut(t, s, container("last", Added))
	all = append([]Key{{"last", "eth0"}}, all...)
	if err := errors.Join(s.Close(), os.Remove(path+aheadSuffix)); err != nil {
		t.Fatal(err)
	}
	s = open(t, path)
	has(s)
}

func FuzzParseAhead(f *testing.F) {
	f.Add([]byte(aheadMagic), 2)
	f.Fuzz(func(t *testing.T, raw []byte, txid int) {
		if writes, err := parseAhead(raw, txid); err != nil && writes != nil {
			t.Errorf("parseAhead(%q) = %v, %v", raw, writes, err)
		}
	})
}
