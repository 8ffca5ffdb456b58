// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// result is what a part leaves in its folder when it ends: the mark of a part that passed.
type result struct {
	Part   string
	Passed bool
	// Wall is how long the part took, CPU the time of its processes that it waited for.
	Wall, CPU time.Duration
	counts
}

const resultFile = "result.json"

// treeHash returns the hash of all files of the repository that git does not ignore, as they are
// now.
func treeHash(ctx context.Context, root string) (string, error) {
	folder, err := os.MkdirTemp("", "berth-index-")
	if err != nil {
		return "", fmt.Errorf("make a folder for the index of the tree: %w", err)
	}
	defer os.RemoveAll(folder)
	git := func(args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, "git", args...)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "GIT_INDEX_FILE="+filepath.Join(folder, "index"))
		out, err := cmd.Output()
		if err != nil {
			return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
		}
		return strings.TrimSpace(string(out)), nil
	}
	if _, err := git("add", "--all"); err != nil {
		return "", err
	}
	return git("write-tree")
}

// readResult returns the result in a part's folder, or nil if the part has not ended there.
func readResult(folder string) (*result, error) {
	text, err := os.ReadFile(filepath.Join(folder, resultFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the result of an earlier run: %w", err)
	}
	r := &result{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("read the result in %s, remove it if it is damaged: %w", folder, err)
	}
	return r, nil
}

func (r *result) save(folder string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write the result of part %s: %w", r.Part, err)
	}
	if err := os.WriteFile(filepath.Join(folder, resultFile), append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the result of part %s: %w", r.Part, err)
	}
	return nil
}
