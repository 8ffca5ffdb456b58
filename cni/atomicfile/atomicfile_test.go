// SPDX-License-Identifier: Apache-2.0

package atomicfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

var writers = map[string]func(path string, content io.Reader, mode fs.FileMode) error{
	"Replace": Replace, "ReplaceSynced": ReplaceSynced,
}

func TestWrite(t *testing.T) {
	for name, write := range writers {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "file.json")
			broken := errors.New("broken")
			if err := write(path, io.MultiReader(strings.NewReader("half"), iotest.ErrReader(broken)), 0o600); !errors.Is(err, broken) {
				t.Errorf("the error is %v, want the content's error", err)
			}
			if names := list(t, dir); len(names) > 0 {
				t.Errorf("a failed write left %q", names)
			}
			for _, mode := range []fs.FileMode{0o600, 0o644, 0o755} {
				if err := write(path, strings.NewReader("whole"), mode); err != nil {
					t.Fatal(err)
				}
				content, err := os.ReadFile(path)
				if err != nil || string(content) != "whole" {
					t.Errorf("the file has %q, %v", content, err)
				}
				info, err := os.Stat(path)
				if err != nil || info.Mode() != mode {
					t.Errorf("the mode is %v, %v, want %v", info.Mode(), err, mode)
				}
				if names := list(t, dir); !slices.Equal(names, []string{"file.json"}) {
					t.Errorf("the folder has %q", names)
				}
			}
			if err := write(filepath.Join(dir, "none", "file"), strings.NewReader(""), 0o600); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("without the folder the error is %v", err)
			}
		})
	}
}

// A write that fails leaves the old content.
func TestReplaceKeeps(t *testing.T) {
	for _, replace := range []func(string, io.Reader, fs.FileMode) error{Replace, ReplaceSynced} {
		dir := t.TempDir()
		path := filepath.Join(dir, "file")
		err := replace(path, strings.NewReader("old"), 0o600)
		if failed := replace(path, iotest.ErrReader(errors.New("broken")), 0o600); err != nil || failed == nil {
			t.Fatal(err, failed)
		}
		if content, err := os.ReadFile(path); err != nil || string(content) != "old" {
			t.Errorf("the file has %q, %v", content, err)
		}
	}
}

func TestUnfinished(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".a.json.tmp-123", ".b.json.tmp-4", "a.json", ".a.json", "a.json.tmp-5"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for pattern, want := range map[string][]string{
		"a.json": {".a.json.tmp-123"}, "*.json": {".a.json.tmp-123", ".b.json.tmp-4"}, "c.json": nil,
	} {
		found, err := Unfinished(filepath.Join(dir, pattern))
		for i := range found {
			found[i] = filepath.Base(found[i])
		}
		if err != nil || !slices.Equal(found, want) {
			t.Errorf("of %s: %q, %v, want %q", pattern, found, err, want)
		}
	}
}

func list(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}
