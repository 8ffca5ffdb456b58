// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// listed is a package as go list prints it.
type listed struct {
	ImportPath, Dir           string
	TestGoFiles, XTestGoFiles []string
	TestImports, XTestImports []string
}

func (l listed) hasTests() bool { return len(l.TestGoFiles)+len(l.XTestGoFiles) > 0 }

func (l listed) testsImport(path string) bool {
	return slices.Contains(l.TestImports, path) || slices.Contains(l.XTestImports, path)
}

// list returns the packages of a suite that have tests.
func (s suite) list(ctx context.Context, root string) ([]listed, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles,TestImports,XTestImports"}, s.packages...)...)
	cmd.Dir = filepath.Join(root, s.module)
	cmd.Env = append(os.Environ(), "GOWORK=off") // as the Makefile has it
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages of %s: %w: %s", s.module, err, stderr.Bytes())
	}
	var found []listed
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var l listed
		if err := decoder.Decode(&l); errors.Is(err, io.EOF) {
			return found, nil
		} else if err != nil {
			return nil, fmt.Errorf("read the packages of %s: %w", s.module, err)
		}
		if l.hasTests() && (s.uses == "" || l.testsImport(s.uses)) && (s.lacks == "" || !l.testsImport(s.lacks)) {
			found = append(found, l)
		}
	}
}
