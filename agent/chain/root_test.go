// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
)

// A node's folders of plugins may be symbolic links: they lead where they lead on the node.
func TestFindInNode(t *testing.T) {
	root := t.TempDir()
	err := errors.Join(
		os.MkdirAll(filepath.Join(root, "var/lib/plugins"), 0o755), os.MkdirAll(filepath.Join(root, "opt/cni"), 0o755),
		os.Symlink("/var/lib/plugins", filepath.Join(root, "opt/cni/bin")),
		os.WriteFile(filepath.Join(root, "var/lib/plugins/p"), nil, 0o755))
	if err != nil {
		t.Fatal(err)
	}
	e := &Exec{Root: root}
	if file, err := e.FindInPath("p", []string{"/nowhere", "/opt/cni/bin"}); err != nil || file != "/opt/cni/bin/p" {
		t.Errorf("%q, %v", file, err)
	}
	if file, err := e.FindInPath("q", []string{"/opt/cni/bin"}); err == nil {
		t.Errorf("found %q", file)
	}
}

// envRoot is set for the child of TestRoot; it is the folder of the node's file system.
const envRoot = "BERTH_TEST_HOST_ROOT"

// TestRoot makes mounts as a container of the agent has them, and lacks one thing after
// the other.
func TestRoot(t *testing.T) {
	if root := os.Getenv(envRoot); root != "" {
		inContainer(t, root)
		return
	}
	netnstest.Need(t)
	cases := map[string]struct {
		setup, want string
	}{
		"whole":           {`mount --make-rshared / && mount --rbind / $ROOT && mount --make-rslave $ROOT`, ""},
		"no propagation":  {`mount --rbind / $ROOT`, "mountPropagation: HostToContainer"},
		"other processes": {`mount --make-rshared / && mount --rbind / $ROOT && mount --make-rslave $ROOT && set -- unshare --pid --fork --mount-proc "$@"`, "hostPID: true"},
		"no capability":   {`mount --make-rshared / && mount --rbind / $ROOT && mount --make-rslave $ROOT && set -- setpriv --bounding-set=-sys_chroot --inh-caps=-all -- "$@"`, "SYS_CHROOT"},
		"nothing":         {`true`, "hostPath"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			child := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-ec",
				c.setup+` && mkdir -p $ROOT/mnt && mount -t tmpfs tmpfs $ROOT/mnt && touch $ROOT/mnt/on-the-node && exec "$@"`,
				"sh", os.Args[0], "-test.run=^TestRoot$", "-test.v")
			child.Env = append(os.Environ(), "ROOT="+root, envRoot+"="+root)
			out, err := child.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if c.want == "" && !strings.Contains(string(out), "plugins run") || !strings.Contains(string(out), c.want) {
				t.Errorf("want %q:\n%s", c.want, out)
			}
		})
	}
}

// inContainer looks at the mounts, and runs a plugin where they are complete.
func inContainer(t *testing.T, root string) {
	e := &Exec{Root: root}
	if err := e.CheckRoot(); err != nil {
		t.Log(err)
		return
	}
	plugin := filepath.Join(t.TempDir(), "plugin")
	if err := os.WriteFile(plugin, []byte("#!/bin/sh\nls /mnt; echo $PATH; test -e /proc/$$/ns/net || exit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := e.ExecPlugin(t.Context(), plugin, nil, nil)
	if want := "on-the-node\n" + nodePath + "\n"; err != nil || string(out) != want {
		t.Fatalf("the plugin says %q, %v, want %q", out, err, want)
	}
	t.Log("plugins run")
}
