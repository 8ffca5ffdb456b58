// SPDX-License-Identifier: Apache-2.0

package cleanup

import (
	"bytes"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/deviceplugin"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/atomicfile"
	"github.com/berth-dev/berth/cni/leftover"
	"github.com/berth-dev/berth/cni/settings"
	"github.com/berth-dev/berth/cni/sriov"
)

// configuration lists the file that makes the runtime call Berth, also under names that other
// programs gave it: Cilium's agent renames the configurations of others.
func (n *Node) configuration() ([]leftover.Item, error) {
	ours := func(path string) (bool, error) {
		content, err := os.ReadFile(path)
		return bytes.Contains(content, []byte(`"`+api.ShimType+`"`)), err
	}
	all, err := n.installed(n.ConfDir, n.ConfName, ours)
	if err != nil {
		return nil, err
	}
	renamed, err := filepath.Glob(filepath.Join(n.ConfDir, n.ConfName+".*"))
	if err != nil {
		return nil, fmt.Errorf("look for copies of %s: %w", n.ConfName, err)
	}
	for _, path := range renamed {
		if is, err := ours(path); err == nil && is {
			all = append(all, fileItems([]string{path})...)
		}
	}
	return all, nil
}

// modules are the Go modules of the programs in the agent's image. Upstream's plugins have names of
// our own in it.
var modules = []string{"github.com/berth-dev/berth", "github.com/containernetworking/plugins"}

// plugins lists the programs that `berth-agent install` copied.
func (n *Node) plugins() ([]leftover.Item, error) {
	var all []leftover.Item
	for _, name := range n.Programs {
		items, err := n.installed(n.BinDir, name, func(path string) (bool, error) {
			info, err := buildinfo.ReadFile(path)
			return err == nil && slices.Contains(modules, info.Main.Path), nil
		})
		if err != nil {
			return all, err
		}
		all = append(all, items...)
	}
	return all, nil
}

// installed lists a file that the agent wrote, if it is there and ours, and the temporary
// files of interrupted calls.
func (n *Node) installed(dir, name string, ours func(path string) (bool, error)) ([]leftover.Item, error) {
	path := filepath.Join(dir, name)
	paths, err := atomicfile.Unfinished(path)
	if err != nil {
		return nil, err
	}
	is, err := ours(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case is:
		paths = append(paths, path)
	default:
		if _, err := os.Lstat(path); err == nil {
			fmt.Fprintf(n.Out, "left %s, which is not Berth's\n", path)
		}
	}
	return fileItems(paths), nil
}

// files lists the agent's sockets, its state file, its journal of kernel settings, its key and
// certificate, the folder of claims, which is empty by now, the files that plugins' DEL would need,
// and the folders of all these.
func (n *Node) files() ([]leftover.Item, error) {
	paths, err := state.Files(n.StateFile)
	if err != nil {
		return nil, err
	}
	written := []string{settings.FileBeside(n.StateFile), state.CertificateFileBeside(n.StateFile)}
	for _, file := range written {
		unfinished, err := atomicfile.Unfinished(file)
		if err != nil {
			return nil, err
		}
		paths = append(paths, unfinished...)
	}
	for _, path := range append(written, n.Socket, deviceplugin.Socket) {
		if _, err := os.Lstat(path); err == nil {
			paths = append(paths, path)
		}
	}
	claims, err := sriov.Files(sriov.DirBeside(n.StateFile))
	if err != nil {
		return nil, err
	}
	paths = append(paths, claims...)
	attachments, err := chain.CacheFiles(n.CacheDir)
	if err != nil {
		return nil, err
	}
	paths = append(paths, attachments...)
	if _, err := os.Stat(n.CacheDir); err == nil {
		paths = append(paths, n.CacheDir)
	}
	return withFolders([]string{filepath.Dir(n.Socket), filepath.Dir(n.StateFile), filepath.Dir(n.CacheDir)}, paths)
}

func fileItems(paths []string) []leftover.Item {
	var items []leftover.Item
	for _, path := range paths {
		items = append(items, item("file", path))
	}
	return items
}

func item(kind, path string) leftover.Item {
	return leftover.Item{Name: kind + " " + path, Remove: func() error {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}}
}

// withFolders lists files, and then Berth's own folders without any other files.
func withFolders(dirs, paths []string) ([]leftover.Item, error) {
	items := fileItems(paths)
	slices.Sort(dirs)
	for _, dir := range slices.Compact(dirs) {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return items, err
		}
		if mounted, err := isMount(dir); err != nil {
			return items, err
		} else if mounted {
			continue
		}
		others := slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return !slices.Contains(paths, filepath.Join(dir, e.Name())) })
		if others || filepath.Base(dir) != ownFolder {
			continue
		}
		items = append(items, item("folder", dir))
	}
	return items, nil
}

// isMount reports whether a folder is a mount and so cannot be removed: in the container of an
// agent, and on nodes with a separate disk for the folder.
func isMount(dir string) (bool, error) {
	var stat unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW, 0, &stat); err != nil {
		return false, fmt.Errorf("look at %s: %w", dir, err)
	}
	return stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// ownFolder is the name of the folders that the DaemonSet makes for the agent.
const ownFolder = "berth"
