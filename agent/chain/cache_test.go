// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
)

// The file of an attachment is there from before the first plugin's ADD until all DELs have
// succeeded, for other processes and after a restart of the node, and DEL gets the same input from
// it as from the caller.
func TestCache(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "sub", "cache")
	f := &fakeExec{fail: map[string]error{"ADD second": types.NewError(120, "no", ""), "DEL second": types.NewError(120, "no", "")}}
	r := NewRunner(f, nil)
	r.Cache = NewCache(dir, "a")
	n := parse(t, twoPlugins)
	if _, err := r.Add(t.Context(), n, container, nil); err == nil {
		t.Error("ADD succeeds")
	}
	if err := r.Del(t.Context(), n, container, nil); err == nil {
		t.Error("DEL succeeds")
	}
	direct := f.calls[len(f.calls)-2:]
	chained := container
	chained.ContainerID = "d"
	f.fail = nil
	if _, err := r.Add(t.Context(), n.Chained(), chained, nil); err != nil {
		t.Fatal(err)
	}
	for boot, earlier := range map[string]bool{"a": false, "b": true} {
		next := NewRunner(f, nil)
		next.Cache = NewCache(dir, boot)
		all, err := next.Attached()
		if err != nil || len(all) != 2 {
			t.Fatalf("Attached() = %v, %v", all, err)
		}
		for _, one := range all {
			if one.Earlier != earlier || one.ContainerID == "d" && !cmp.Equal([]string{"second"}, one.Network.Types()) {
				t.Errorf("of boot %s: %+v", boot, one)
			}
		}
	}
	all, _ := r.Attached()
	for _, one := range all {
		f.calls = nil
		if err := r.Del(t.Context(), one.Network, one.Attachment, nil); err != nil {
			t.Error(err)
		}
		if one.ContainerID == container.ContainerID {
			if diff := cmp.Diff(direct, f.calls); diff != "" {
				t.Errorf("DEL (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(container, one.Attachment); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		}
	}
	if left, err := CacheFiles(dir); len(left) > 0 || err != nil {
		t.Errorf("left: %q, %v", left, err)
	}
	// A driver that does all the work leaves nothing to plugins.
	if _, err := r.Add(t.Context(), parse(t, `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"p"}]}`).Chained(), container, json.RawMessage(`{}`)); err != nil {
		t.Fatal(err)
	}
	if left, err := CacheFiles(dir); len(left) > 0 || err != nil {
		t.Errorf("left: %q, %v", left, err)
	}
}

// A loss of power may leave a file without its content: it is named once, and the others are
// listed.
func TestCacheDamaged(t *testing.T) {
	dir := t.TempDir()
	r := NewRunner(&fakeExec{}, nil)
	r.Cache = NewCache(dir, "a")
	if _, err := r.Add(t.Context(), parse(t, twoPlugins), container, nil); err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{"", "\x00\x00", `{"network":{}}`} {
		path := filepath.Join(dir, "x"+cacheSuffix)
		if err := errors.Join(os.WriteFile(path, []byte(content), 0o600), os.WriteFile(filepath.Join(dir, "."+filepath.Base(path)+".tmp-1"), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		if all, err := r.Attached(); len(all) != 1 || err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("Attached() = %v, %v", all, err)
		}
		if all, err := r.Attached(); len(all) != 1 || err != nil {
			t.Errorf("Attached() = %v, %v", all, err)
		}
	}
}
