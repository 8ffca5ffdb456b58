// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/docs"
)

// TestTutorial does what docs/tutorial tells a new user, in its order, and sees what
// the pages show.
func TestTutorial(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	s := &stage{world: shared, t: t, ctx: ctx}
	root, err := deploy.Root()
	s.must(err)
	// The page has the lab with the default name.
	bin, dir := t.TempDir(), t.TempDir()
	lab := fmt.Sprintf("#!/bin/sh\nexec %q --name=%s \"$@\"\n", filepath.Join(s.Cluster.BinDir(), "lab"), s.Cluster.Name())
	s.must(os.WriteFile(filepath.Join(bin, "lab"), []byte(lab), 0o700))
	environment := []string{
		"KUBECONFIG=" + s.Cluster.Kubeconfig(),
		"PATH=" + bin + ":" + s.Cluster.BinDir() + ":" + filepath.Join(root, "bin") + ":" + os.Getenv("PATH"),
	}
	s.atEnd(s.settled)
	s.atEnd(s.leaveTutorial)
	for _, path := range docs.OnLab {
		page, err := docs.Read(root, path)
		s.must(err)
		s.must(docs.Run(ctx, page, dir, environment))
	}
	s.agree()
}

// leaveTutorial removes what a page leaves.
func (s *stage) leaveTutorial() {
	for _, node := range s.Cluster.Nodes() {
		if !s.t.Failed() {
			break
		}
		s.must(s.Cluster.StartNode(s.ctx, node.Name()))
		s.declareBack(node.Name())
	}
	s.kubectl("delete", "statefulset/shop", "--ignore-not-found", patiently)
	s.kubectl("delete", "ippool/first", "--ignore-not-found", patiently)
}
