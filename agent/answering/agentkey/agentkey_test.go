// SPDX-License-Identifier: Apache-2.0

package agentkey

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/agent/answering"
	"github.com/berth-dev/berth/agent/answering/datagram"
)

func key(b byte) []byte { return bytes.Repeat([]byte{b}, datagram.MinKey) }

// put makes the folder have exactly these keys; nil has none.
func put(t *testing.T, dir string, current, other []byte) {
	t.Helper()
	for name, key := range map[string][]byte{Current: current, Other: other} {
		file := filepath.Join(dir, name)
		if err := os.RemoveAll(file); err != nil {
			t.Fatal(err)
		}
		if key == nil {
			continue
		}
		if err := os.WriteFile(file, key, 0o400); err != nil {
			t.Fatal(err)
		}
	}
}

// refresh returns a part of the error that is wanted.
func refresh(t *testing.T, h *Holder, want string) {
	t.Helper()
	if err := h.Refresh(); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("Refresh() = %v, want %q", err, want)
	}
}

// Nodes that have seen a rotation of keys, and ones that have not yet, believe each other.
func TestRotation(t *testing.T) {
	dir1, dir2 := t.TempDir(), t.TempDir()
	h1, h2 := NewHolder(dir1, "c"), NewHolder(dir2, "c")
	believe := func(want bool) {
		t.Helper()
		for _, pair := range [][2]*Holder{{h1, h2}, {h2, h1}} {
			datagrams, err := pair[0].Codec().Encode(netip.Addr{}, []answering.Message{{Kind: answering.Call}})
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := pair[1].Codec().Decode(datagrams[0]); (err == nil) != want {
				t.Errorf("Decode() = %v", err)
			}
		}
	}
	refresh(t, h1, "")
	if h1.Codec() != nil {
		t.Error("there is a codec without a key")
	}
	put(t, dir1, key(1), nil)
	put(t, dir2, key(1), nil)
	refresh(t, h1, "")
	refresh(t, h2, "")
	believe(true)

	// As docs/explanation/security.md says: the new key is believed by all before anybody signs by it.
	put(t, dir1, key(1), key(2))
	refresh(t, h1, "")
	believe(true)
	put(t, dir2, key(1), key(2))
	refresh(t, h2, "")
	put(t, dir1, key(2), key(1))
	refresh(t, h1, "")
	believe(true)
	put(t, dir2, key(2), key(1))
	refresh(t, h2, "")
	put(t, dir1, key(2), nil)
	refresh(t, h1, "")
	believe(true)

	before := h1.Codec()
	refresh(t, h1, "")
	put(t, dir1, nil, nil)
	refresh(t, h1, "")
	put(t, dir1, []byte("short"), nil)
	refresh(t, h1, "has 5 bytes")
	put(t, dir1, key(3), []byte{})
	refresh(t, h1, "key other in "+dir1+" has 0 bytes")
	if h1.Codec() != before {
		t.Error("the codec has changed without another key")
	}
	put(t, dir1, key(3), nil)
	refresh(t, h1, "")
	believe(false)
}
