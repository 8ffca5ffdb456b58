// SPDX-License-Identifier: Apache-2.0

// Package krew packs kubectl-berth for krew, the package manager of kubectl plugins: an archive for
// each platform, and the manifest that names them with their checksums
// (https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/). Packed twice, archives are
// equal.
package krew

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// Platform is an operating system and an architecture, as Go calls them.
type Platform struct{ OS, Arch string }

// Platforms are the platforms for which there is a kubectl.
var Platforms = []Platform{
	{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}, {"windows", "amd64"}, {"windows", "arm64"},
}

func (p Platform) String() string { return p.OS + "-" + p.Arch }

// Program is the name of the plugin's file.
func (p Platform) Program() string {
	if p.OS == "windows" {
		return "kubectl-berth.exe"
	}
	return "kubectl-berth"
}

// Release names the programs and the version that are packed.
type Release struct {
	// Version begins with a v, as krew requires.
	Version string
	// URL is the folder that archives are fetched from.
	URL string
	// License is the text of the license, Completion the script by which kubectl completes the
	// plugin's words.
	License, Completion []byte
	// Programs are by platform.
	Programs map[Platform][]byte
}

// Plugin is a manifest, of krew's API krew.googlecontainertools.github.com/v1alpha2.
type Plugin struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              Spec `json:"spec"`
}

// Spec of a Plugin.
type Spec struct {
	Version          string     `json:"version"`
	Homepage         string     `json:"homepage"`
	ShortDescription string     `json:"shortDescription"`
	Description      string     `json:"description"`
	Caveats          string     `json:"caveats"`
	Platforms        []Download `json:"platforms"`
}

// Download is the archive of a platform.
type Download struct {
	Selector metav1.LabelSelector `json:"selector"`
	URI      string               `json:"uri"`
	SHA256   string               `json:"sha256"`
	Bin      string               `json:"bin"`
}

const (
	homepage         = "https://github.com/berth-dev/berth"
	shortDescription = "Work with Berth's floating IPs of pods"
	description      = `Berth gives pods floating IPs: addresses of your own network that a pod keeps through
restarts, rescheduling, node loss and rolling updates. The plugin says who has an
address, why a pod waits for one, which are free, and which objects contradict each other; it
takes addresses out of circulation, frees what is kept, and makes backups.
`
	caveats = `Krew puts no second program on the PATH. For completion, on Linux and macOS:
  cp "${KREW_ROOT:-$HOME/.krew}/store/berth/%s/` + completion + `" "${KREW_ROOT:-$HOME/.krew}/bin/"
`
	// completion is the script's file: kubectl looks for it on the PATH. On Windows it would have to
	// be a program.
	completion = "kubectl_complete-berth"
)

// manifestName is the manifest's file.
const manifestName = "kubectl-berth.krew.yaml"

// Write packs a release into a folder.
func (r *Release) Write(folder string) error {
	if !strings.HasPrefix(r.Version, "v") {
		return fmt.Errorf("version %q: krew requires a v before the number, as in v1.2.3", r.Version)
	}
	plugin := Plugin{
		TypeMeta:   metav1.TypeMeta{APIVersion: "krew.googlecontainertools.github.com/v1alpha2", Kind: "Plugin"},
		ObjectMeta: metav1.ObjectMeta{Name: "berth"},
		Spec:       Spec{Version: r.Version, Homepage: homepage, ShortDescription: shortDescription, Description: description, Caveats: fmt.Sprintf(caveats, r.Version)},
	}
	for _, p := range Platforms {
		program, ok := r.Programs[p]
		if !ok {
			continue
		}
		files := []file{{"LICENSE", 0o644, r.License}, {p.Program(), 0o755, program}}
		if p.OS != "windows" {
			files = append(files, file{completion, 0o755, r.Completion})
		}
		packed, err := pack(files)
		if err != nil {
			return fmt.Errorf("pack the plugin for %s: %w", p, err)
		}
		name := fmt.Sprintf("kubectl-berth-%s-%s.tar.gz", r.Version, p)
		if err := os.WriteFile(filepath.Join(folder, name), packed, 0o644); err != nil {
			return fmt.Errorf("write the archive for %s: %w", p, err)
		}
		sum := sha256.Sum256(packed)
		plugin.Spec.Platforms = append(plugin.Spec.Platforms, Download{
			Selector: metav1.LabelSelector{MatchLabels: map[string]string{"os": p.OS, "arch": p.Arch}},
			URI:      r.URL + "/" + name, SHA256: hex.EncodeToString(sum[:]), Bin: p.Program(),
		})
	}
	text, err := yaml.Marshal(plugin)
	if err != nil {
		return fmt.Errorf("write the manifest: %w", err)
	}
	return os.WriteFile(filepath.Join(folder, manifestName), text, 0o644)
}

// file is one of an archive.
type file struct {
	name    string
	mode    int64
	content []byte
}

// pack makes an archive, without times and owners.
func pack(files []file) ([]byte, error) {
	var packed bytes.Buffer
	zipped, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	archive := tar.NewWriter(zipped)
	for _, file := range files {
		if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: file.name, Mode: file.mode, Size: int64(len(file.content))}); err != nil {
			return nil, err
		}
		if _, err := archive.Write(file.content); err != nil {
			return nil, err
		}
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	if err := zipped.Close(); err != nil {
		return nil, err
	}
	return packed.Bytes(), nil
}
