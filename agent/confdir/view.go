// SPDX-License-Identifier: Apache-2.0

// Package confdir keeps Berth's CNI configuration in the runtime's folder, as the first one: the
// runtime takes the first by name. Other programs rename it (Cilium), or put theirs before it
// (Multus).
//
// view.go says without I/O what a folder's files mean; keeper.go watches and writes.
package confdir

import (
	"bytes"
	"encoding/json"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-dev/berth/cni/api"
)

// File is a file of the runtime's folder.
type File struct {
	Name    string
	Content []byte
}

// View is a folder as the runtime sees it.
type View struct {
	// Written says that our file has our content.
	Written bool
	// MovedTo names another file with our content, which no runtime reads.
	MovedTo string
	// Former names our file under another name: it has our content, and the runtime may take it.
	Former string
	// First names the file that the runtime takes, and Plugin its first plugin. They are empty if the
	// runtime takes our file or another file that leads to Berth.
	First, Plugin string
	// CalledByMultus says that the runtime takes Multus, which leads to Berth.
	CalledByMultus bool
}

// Look returns the view of a folder in which our configuration is the file own with this content.
func Look(files []File, own string, content []byte) View {
	var v View
	first := ""
	for _, file := range files {
		same := bytes.Equal(file.Content, content)
		switch {
		case file.Name == own:
			v.Written = same
		case same && isConfiguration(file.Name):
			v.Former = file.Name
		case same:
			v.MovedTo = file.Name
		}
		if isConfiguration(file.Name) && (first == "" || file.Name < first) {
			first = file.Name
			v.First, v.Plugin, v.CalledByMultus = "", "", false
			switch {
			case file.Name == own:
			case LeadsTo(file.Content, own):
				v.CalledByMultus = IsMultus(plugin(file.Content))
			case !drawsFrom(file.Content, files):
				v.First, v.Plugin = file.Name, plugin(file.Content)
			}
		}
	}
	if own < first {
		// Our file is missing, and would be the first.
		v.First, v.Plugin, v.CalledByMultus = "", "", false
	}
	return v
}

// isConfiguration reports whether runtimes read a file of this name.
func isConfiguration(name string) bool {
	return slices.Contains([]string{".conflist", ".conf", ".json"}, filepath.Ext(name))
}

// configuration has the fields of a list, of a single plugin, and of Multus.
type configuration struct {
	Type string `json:"type"`
	IPAM struct {
		Type string `json:"type"`
	} `json:"ipam"`
	Plugins        []configuration   `json:"plugins"`
	ClusterNetwork string            `json:"clusterNetwork"`
	Delegates      []json.RawMessage `json:"delegates"`
}

// IsMultus reports whether a plugin is Multus: multus or multus-shim. It attaches pods to the
// networks that they name, by itself.
func IsMultus(plugin string) bool { return strings.HasPrefix(plugin, "multus") }

// CalledByMultus reports whether the runtime takes a configuration of Multus in its folder dir that
// leads to Berth, whose file is own.
func CalledByMultus(dir, own string) (bool, error) {
	files, err := read(dir)
	return Look(files, own, nil).CalledByMultus, err
}

// LeadsTo reports whether a network configuration calls Berth's plugin, by itself or as Multus'
// network of all pods. Multus names this network by a file, by its name, or has its configuration
// inside.
func LeadsTo(content []byte, own string) bool {
	return slices.ContainsFunc(plugins(content), func(c configuration) bool {
		switch {
		case c.Type == api.ShimType:
			return true
		case !IsMultus(c.Type):
			return false
		case c.ClusterNetwork != "":
			return path.Base(c.ClusterNetwork) == own || c.ClusterNetwork == api.NetworkName
		default:
			// The first delegate is the network of all pods.
			return len(c.Delegates) > 0 && LeadsTo(c.Delegates[0], own)
		}
	})
}

// drawsFrom reports whether plugins of a network, or of the file that Multus in it names, get their
// addresses from Berth.
func drawsFrom(content []byte, files []File) bool {
	return slices.ContainsFunc(plugins(content), func(c configuration) bool {
		return c.IPAM.Type == api.IPAMType || IsMultus(c.Type) && slices.ContainsFunc(files, func(f File) bool {
			return f.Name == path.Base(c.ClusterNetwork) && slices.ContainsFunc(plugins(f.Content), func(c configuration) bool { return c.IPAM.Type == api.IPAMType })
		})
	})
}

// plugins returns the plugins of a list, or a single one.
func plugins(content []byte) []configuration {
	var c configuration
	if json.Unmarshal(content, &c) != nil {
		return nil
	}
	return append(c.Plugins, c)
}

// plugin returns the type of the first plugin of a configuration, or empty.
func plugin(content []byte) string {
	if all := plugins(content); len(all) > 0 {
		return all[0].Type
	}
	return ""
}
