// SPDX-License-Identifier: Apache-2.0

package sbom

import (
	"debug/buildinfo"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/berth-dev/berth/test/image"
)

// archive makes images of two architectures that have a program, a package of Debian that differs
// between them, and a file that is neither.
func archive(t *testing.T) (out, program string) {
	t.Helper()
	dir := t.TempDir()
	program = filepath.Join(dir, "program")
	if text, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../cmd/sbom").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	write := func(name, text string, mode os.FileMode) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return file
	}
	script := write("script", "#!/bin/sh\n", 0o755)
	var images []v1.Image
	for _, arch := range []string{"amd64", "arm64"} {
		status := write("iptables-"+arch, "Package: iptables\nStatus: install ok installed\nArchitecture: "+arch+"\nVersion: 1.8.11-2+b1\nDescription: rules\n Package: other\n", 0o644)
		img, err := image.Make(arch, map[string]string{"/berth-agent": program, "/script": script, "/var/lib/dpkg/status.d/iptables": status}, image.Config{
			Labels: map[string]string{"org.opencontainers.image.title": "berth-agent", "org.opencontainers.image.version": "v1.2.3"},
		}, image.Uncompressed)
		if err != nil {
			t.Fatal(err)
		}
		images = append(images, img)
	}
	out = filepath.Join(dir, "berth-agent-v1.2.3.tar")
	if err := image.Write(out, "berth.dev/berth-agent:v1.2.3", images...); err != nil {
		t.Fatal(err)
	}
	return out, program
}

// The document has each module of each program, the packages of each architecture, and no more.
func TestWrite(t *testing.T) {
	made, program := archive(t)
	out, err := Write(made)
	if err != nil || filepath.Base(out) != "berth-agent-v1.2.3.cdx.json" {
		t.Fatalf("%s, %v", out, err)
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	var document Document
	if err := json.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	if document.Format != "CycloneDX" || document.Metadata.Component.Name != "berth-agent" || document.Metadata.Component.Version != "v1.2.3" {
		t.Errorf("it is about %+v", document)
	}
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"berth-agent/berth-agent", "pkg:golang/stdlib@" + strings.TrimPrefix(info.GoVersion, "go"),
		"pkg:deb/debian/iptables@1.8.11-2%2Bb1?arch=amd64", "pkg:deb/debian/iptables@1.8.11-2%2Bb1?arch=arm64",
	}
	modules := info.Deps
	if info.Main.Version != "(devel)" {
		// go build has named the program by its commit, as it does in a clean clone.
		modules = append([]*debug.Module{&info.Main}, modules...)
	}
	for _, module := range modules {
		if module.Replace != nil {
			module = module.Replace
		}
		want = append(want, "pkg:golang/"+module.Path+"@"+strings.ReplaceAll(module.Version, "+", "%2B"))
	}
	var have []string
	for _, component := range document.Components {
		have = append(have, component.Ref)
	}
	slices.Sort(want)
	if !slices.Equal(have, want) || len(info.Deps) == 0 {
		t.Errorf("it has %q, want %q", have, want)
	}
	for _, dependency := range document.Dependencies {
		if dependency.Ref == "berth-agent" && !slices.Equal(dependency.On, []string{want[slices.Index(want, "berth-agent/berth-agent")], "pkg:deb/debian/iptables@1.8.11-2%2Bb1?arch=amd64", "pkg:deb/debian/iptables@1.8.11-2%2Bb1?arch=arm64"}) {
			t.Errorf("the image has %q", dependency.On)
		}
	}
	if _, err := Write(made); err != nil {
		t.Fatal(err)
	}
	if again, err := os.ReadFile(out); err != nil || string(again) != string(text) {
		t.Errorf("the same images make another document (%v)", err)
	}
}

// An archive of something else is refused.
func TestNoImages(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.tar")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := Write(file); err == nil {
		t.Errorf("wrote %s", out)
	}
}
