// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

const (
	// DefaultName is the name of a lab when none is given.
	DefaultName = "berth"
	// DefaultNodes is the number of nodes of a lab when none is given.
	DefaultNodes = 3
	// MaxNodes is the largest number of nodes that the address plan allows.
	MaxNodes = 50
	// MaxPods is the largest number of pods of a node that the address plan allows.
	MaxPods = 253
	// MarkerEnv is the environment variable, set to the lab's name, that
	// every process started by a lab carries. May never change: Down finds
	// the processes of a crashed Up by it.
	MarkerEnv = "BERTH_LAB"
	// DirEnv is the environment variable that moves the folder of all labs.
	DirEnv = "BERTH_LAB_DIR"
	// BinEnv is the environment variable that names a folder with built
	// programs; nothing is built when it is set.
	BinEnv = "BERTH_LAB_BIN"

	defaultBaseDir = "/var/lib/berth-lab"
)

// Options says what lab to make. The zero value is a good lab.
type Options struct {
	// Name of the lab: lower-case letters, digits and dashes, at most 20.
	Name string
	// Nodes is the number of nodes, DefaultNodes when 0.
	Nodes int
	// Progress gets one line for each step, with times. Nil is silent.
	Progress io.Writer
	// Keep leaves what was made when Up fails, for a look at it. The lab is
	// then ended with Down.
	Keep bool
	// EvictAfter is how long pods without tolerations of their own stay
	// bound to a node that is lost, in whole seconds. Kubernetes' own
	// 5 minutes when 0.
	EvictAfter time.Duration
	// APIServerFlags and ControllerFlags are added to the command lines of
	// kube-apiserver and kube-controller-manager.
	APIServerFlags, ControllerFlags []string
	// MaxPods is how many pods kubelet runs on a node: its own 110 when 0, and
	// at most MaxPods, which is how many addresses a node's subnet of pods has.
	MaxPods int
	// Pause is the path of a static program. Every node has it as PauseImage,
	// and runs it in the sandboxes of pods instead of agnhost, which takes 8 MB
	// for each.
	Pause string
}

// complete returns o with defaults set, or what is wrong with it.
func (o Options) complete() (Options, error) {
	if o.Name == "" {
		o.Name = DefaultName
	}
	if o.Nodes == 0 {
		o.Nodes = DefaultNodes
	}
	if o.Nodes < 0 || o.Nodes > MaxNodes {
		return o, fmt.Errorf("lab %q: %d nodes: want 1 to %d", o.Name, o.Nodes, MaxNodes)
	}
	if o.MaxPods < 0 || o.MaxPods > MaxPods {
		return o, fmt.Errorf("lab %q: %d pods on a node: want 1 to %d", o.Name, o.MaxPods, MaxPods)
	}
	if o.EvictAfter < 0 || o.EvictAfter%time.Second != 0 {
		return o, fmt.Errorf("lab %q: evict after %s: want whole seconds", o.Name, o.EvictAfter)
	}
	return o, checkName(o.Name)
}

// checkName refuses names that cannot be part of a path or a cgroup name.
func checkName(name string) error {
	if !regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?$`).MatchString(name) {
		return fmt.Errorf("lab name %q: want at most 20 lower-case letters, digits and dashes", name)
	}
	return nil
}

// baseDir is the folder that holds the folders of all labs.
func baseDir() string {
	if d := os.Getenv(DirEnv); d != "" {
		return d
	}
	return defaultBaseDir
}

// Dir returns the folder of the lab with the given name; it exists from the
// first step of Up to the last step of Down.
func Dir(name string) string { return filepath.Join(baseDir(), name) }
