// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// program is one program that a lab runs, built from this module or from a module in
// a folder below it.
type program struct {
	name   string
	pkg    string // import path
	module string // folder of the module that pins it, below test
	source string // folder of its source if it is our own, below test
}

// programs returns all programs, in the order in which they are built.
func programs() []program {
	var all []program
	for _, n := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"} {
		all = append(all, program{name: n, pkg: "k8s.io/kubernetes/cmd/" + n, module: kubernetesModule()})
	}
	all = append(all,
		program{name: "kubectl", pkg: "k8s.io/kubernetes/cmd/kubectl", module: "."},
		program{name: "agnhost", pkg: "k8s.io/kubernetes/test/images/agnhost", module: "."},
		program{name: "etcd", pkg: "github.com/berth-dev/berth/test/etcd", module: ".", source: "etcd"},
		program{name: "forward", pkg: "github.com/berth-dev/berth/test/lab/forward", module: ".", source: "lab/forward"},
	)
	for _, n := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		all = append(all, program{name: n, pkg: "github.com/containerd/containerd/v2/cmd/" + n, module: "containerd"})
	}
	for _, p := range cniPlugins() {
		module := "."
		if p == flannelPlugin {
			module = "flannel"
		}
		all = append(all, program{name: filepath.Base(p), pkg: "github.com/containernetworking/plugins/plugins/" + p, module: module})
	}
	return all
}

// cniPlugins are the upstream plugins in every node's /opt/cni/bin.
func cniPlugins() []string {
	return []string{"main/bridge", "main/loopback", "main/ptp", "ipam/host-local", "meta/portmap", flannelPlugin}
}

// flannelPlugin is not in the version of the other plugins any more.
const flannelPlugin = "meta/flannel"

// kubernetesModule is the folder of the module that pins the programs of Kubernetes.
func kubernetesModule() string {
	if minor := os.Getenv(KubernetesEnv); minor != "" {
		return "kubernetes/" + minor
	}
	return "."
}

// moduleDir finds the folder of this module: the working directory, one
// above it, or the folder test in one of these.
func moduleDir() (string, error) {
	wd, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the lab's module: %w", err)
	}
	for dir := wd; ; dir = filepath.Dir(dir) {
		for _, d := range []string{dir, filepath.Join(dir, "test")} {
			b, err := os.ReadFile(filepath.Join(d, "go.mod"))
			if err == nil && bytes.HasPrefix(b, []byte("module github.com/berth-dev/berth/test\n")) {
				return d, nil
			}
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("find the lab's module: %s is not in Berth's repository", wd)
		}
	}
}

// BinDir returns the folder of the lab's programs: what BinEnv names, or test/bin in the
// repository around the working directory; each minor of KubernetesEnv has a folder below it.
func BinDir() (string, error) {
	if d := os.Getenv(BinEnv); d != "" {
		return filepath.Abs(d)
	}
	m, err := moduleDir()
	if err != nil {
		return "", err
	}
	k := kubernetesModule()
	if _, err := os.Stat(filepath.Join(m, k, "go.mod")); err != nil {
		return "", fmt.Errorf("find the programs of Kubernetes %s, which %s asks for: %w", filepath.Base(k), KubernetesEnv, err)
	}
	return filepath.Join(m, "bin", k), nil
}

// Build builds the lab's programs that are missing or out of date into
// BinDir. It takes minutes when nothing was ever built, and milliseconds when
// all is there. Several programs may call it at the same time.
func Build(ctx context.Context, w io.Writer) error {
	return build(ctx, newProgress(w))
}

func build(ctx context.Context, progress *progress) error {
	bin, err := BinDir()
	if err != nil || os.Getenv(BinEnv) != "" {
		return err
	}
	return buildInto(ctx, bin, programs(), progress)
}

// BuildProgram builds a program that only some tests need, the package in a folder of this
// module or of a module below it, into BinDir, where it is missing or out of date. It returns
// its path.
func BuildProgram(ctx context.Context, w io.Writer, folder string) (path string, err error) {
	return buildOne(ctx, w, program{name: strings.ReplaceAll(folder, "/", "-"), pkg: "github.com/berth-dev/berth/test/" + folder, module: ".", source: folder})
}

// BuildHelm is BuildProgram for Helm's own program, of the version that the module helm pins.
func BuildHelm(ctx context.Context, w io.Writer) (path string, err error) {
	return buildOne(ctx, w, program{name: "helm", pkg: "helm.sh/helm/v4/cmd/helm", module: helmModule})
}

// helmModule is the folder of the module of Helm and what renders with it.
const helmModule = "helm"

func buildOne(ctx context.Context, w io.Writer, p program) (path string, err error) {
	bin, err := BinDir()
	if err != nil {
		return "", err
	}
	if strings.HasPrefix(p.source, helmModule+"/") {
		p.module = helmModule
	}
	if os.Getenv(BinEnv) == "" {
		err = buildInto(ctx, bin, []program{p}, newProgress(w))
	}
	return filepath.Join(bin, p.name), err
}

func buildInto(ctx context.Context, bin string, programs []program, progress *progress) error {
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return fmt.Errorf("build the lab's programs: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(bin, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return fmt.Errorf("build the lab's programs: %w", err)
	}
	defer f.Close()
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return fmt.Errorf("build the lab's programs: %w", err)
		}
		if err := sleep(ctx, 200*time.Millisecond); err != nil {
			return fmt.Errorf("wait for another build of the lab's programs: %w", err)
		}
	}
	return buildLocked(ctx, bin, programs, progress)
}

func buildLocked(ctx context.Context, bin string, programs []program, progress *progress) error {
	root, err := moduleDir()
	if err != nil {
		return err
	}
	pins := map[string]pinned{}
	for i, p := range programs {
		dir := filepath.Join(root, p.module)
		if _, ok := pins[dir]; !ok {
			pin, err := pinsOf(ctx, dir)
			if err != nil {
				return err
			}
			pins[dir] = pin
		}
		out := filepath.Join(bin, p.name)
		if pins[dir].upToDate(out) && !newer(filepath.Join(root, p.source), out, p.source != "") {
			continue
		}
		progress.say("building %s (%d of %d; minutes if nothing is cached)", p.name, i+1, len(programs))
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w"+pins[dir].kubernetesVersion(), "-o", out, p.pkg)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
		if msg, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w: %s", p.name, err, tail(msg, 10))
		}
	}
	return nil
}

// pinned has the versions that a program must have been built with.
type pinned struct {
	goVersion string
	versions  map[string]string // by module path
}

// kubernetesVersion returns the flags of the linker that give the programs of a module, all the
// same so that they share compiled packages, the version of its Kubernetes; "" where it has none.
func (p pinned) kubernetesVersion() string {
	v, ok := p.versions["k8s.io/kubernetes"]
	if !ok {
		return ""
	}
	const variable = " -X k8s.io/component-base/version."
	return variable + "gitVersion=" + v + variable + "gitMajor=1" + variable + "gitMinor=" + strings.Split(v, ".")[1]
}

var requireLine = regexp.MustCompile(`(?m)^(?:require)?\s+(\S+) (v\S+)`)

// pinsOf reads the go.mod in dir, which lists all modules that its programs
// are made of.
func pinsOf(ctx context.Context, dir string) (pinned, error) {
	b, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return pinned{}, fmt.Errorf("read pinned versions: %w", err)
	}
	cmd := exec.CommandContext(ctx, "go", "env", "GOVERSION")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off")
	v, err := cmd.Output()
	if err != nil {
		return pinned{}, fmt.Errorf("ask for Go's version (is Go installed?): %w", err)
	}
	return pinned{goVersion: strings.TrimSpace(string(v)), versions: parseRequires(b)}, nil
}

// parseRequires returns the versions that a go.mod requires.
func parseRequires(gomod []byte) map[string]string {
	versions := map[string]string{}
	for _, m := range requireLine.FindAllSubmatch(gomod, -1) {
		versions[string(m[1])] = string(m[2])
	}
	return versions
}

// upToDate reports whether the program at path was built by this Go from the
// pinned versions, by what Go wrote into it. (Asking `go build` would link
// every program again.)
func (p pinned) upToDate(path string) bool {
	bi, err := buildinfo.ReadFile(path)
	if err != nil || bi.GoVersion != p.goVersion {
		return false
	}
	for _, m := range append(bi.Deps, &bi.Main) {
		if want, ok := p.versions[m.Path]; ok && m.Version != want {
			return false
		}
	}
	return true
}

// newer reports whether a file in the folder dir is newer than the file than;
// false when !asked.
func newer(dir, than string, asked bool) bool {
	if !asked {
		return false
	}
	t, err := os.Stat(than)
	if err != nil {
		return true
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return true
	}
	for _, e := range entries {
		if fi, err := e.Info(); err != nil || fi.ModTime().After(t.ModTime()) {
			return true
		}
	}
	return false
}
