// SPDX-License-Identifier: Apache-2.0

// Package sbom says what container images are made of, as a CycloneDX document: the Go modules
// in their programs, and the packages of Debian. It reads the finished images, so it says
// nothing of what was meant to be in them. Equal images make equal documents, to the byte.
package sbom

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// Document is a bill of materials in CycloneDX 1.6, with the fields that are in use.
type Document struct {
	Format       string       `json:"bomFormat"`
	Spec         string       `json:"specVersion"`
	Version      int          `json:"version"`
	Metadata     Metadata     `json:"metadata"`
	Components   []Component  `json:"components"`
	Dependencies []Dependency `json:"dependencies"`
}

// Metadata says what the document is about.
type Metadata struct {
	Component Component `json:"component"`
}

// Component is an image, a program of it, a Go module or a package of Debian.
type Component struct {
	Type    string `json:"type"`
	Ref     string `json:"bom-ref"`
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	PURL    string `json:"purl,omitempty"`
}

// Dependency says what is in a component.
type Dependency struct {
	Ref string   `json:"ref"`
	On  []string `json:"dependsOn"`
}

// Of returns the document of an archive of images, one of each architecture.
func Of(archive string) (*Document, error) {
	dir, err := os.MkdirTemp("", "sbom-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if err := unpack(archive, dir); err != nil {
		return nil, fmt.Errorf("unpack %s: %w", archive, err)
	}
	images, err := imagesIn(dir)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", archive, err)
	}
	b := bill{components: map[string]Component{}, in: map[string]map[string]bool{}}
	for _, image := range images {
		if err := b.add(image); err != nil {
			return nil, fmt.Errorf("read %s: %w", archive, err)
		}
	}
	return b.document(), nil
}

// Write writes the document of an archive beside it, and returns the file's name.
func Write(archive string) (string, error) {
	document, err := Of(archive)
	if err != nil {
		return "", err
	}
	text, err := json.MarshalIndent(document, "", "  ")
	if err != nil {
		return "", err
	}
	out := strings.TrimSuffix(archive, ".tar") + ".cdx.json"
	return out, os.WriteFile(out, append(text, '\n'), 0o644)
}

func unpack(archive, dir string) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close()
	for tr := tar.NewReader(file); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		to := filepath.Join(dir, filepath.Clean("/"+h.Name))
		if h.Typeflag == tar.TypeDir {
			if err := os.MkdirAll(to, 0o755); err != nil {
				return err
			}
			continue
		}
		out, err := os.Create(to)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, tr)
		if err := errors.Join(err, out.Close()); err != nil {
			return err
		}
	}
}

// imagesIn returns the images of an OCI layout with one index of images.
func imagesIn(dir string) (images []v1.Image, err error) {
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, err
	}
	outer, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	for _, descriptor := range outer.Manifests {
		inner, err := index.ImageIndex(descriptor.Digest)
		if err != nil {
			return nil, err
		}
		manifest, err := inner.IndexManifest()
		if err != nil {
			return nil, err
		}
		for _, one := range manifest.Manifests {
			image, err := inner.Image(one.Digest)
			if err != nil {
				return nil, err
			}
			images = append(images, image)
		}
	}
	if len(images) == 0 {
		return nil, errors.New("it has no image")
	}
	return images, nil
}

// bill collects components by their reference.
type bill struct {
	image      Component
	components map[string]Component
	in         map[string]map[string]bool
}

func (b *bill) add(image v1.Image) error {
	config, err := image.ConfigFile()
	if err != nil {
		return err
	}
	labels := config.Config.Labels
	b.image = Component{
		Type: "container", Name: labels["org.opencontainers.image.title"], Version: labels["org.opencontainers.image.version"],
		Ref: labels["org.opencontainers.image.title"],
	}
	layers, err := image.Layers()
	if err != nil {
		return err
	}
	for _, layer := range layers {
		if err := b.addLayer(layer); err != nil {
			return err
		}
	}
	return nil
}

func (b *bill) addLayer(layer v1.Layer) error {
	content, err := layer.Uncompressed()
	if err != nil {
		return err
	}
	defer content.Close()
	for tr := tar.NewReader(content); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := path.Clean("/" + h.Name)
		debian := strings.HasPrefix(name, "/var/lib/dpkg/status.d/")
		if h.Typeflag != tar.TypeReg || !debian && h.Mode&0o111 == 0 {
			continue
		}
		text, err := io.ReadAll(tr)
		if err != nil {
			return err
		}
		if debian {
			b.addPackage(text)
			continue
		}
		if info, err := buildinfo.Read(bytes.NewReader(text)); err == nil {
			b.addProgram(name, info)
		}
	}
}

// addProgram adds a program in Go, and its modules.
func (b *bill) addProgram(name string, info *buildinfo.BuildInfo) {
	program := Component{Type: "application", Ref: b.image.Ref + name, Name: path.Base(name), Version: b.image.Version}
	b.put(b.image.Ref, program)
	b.put(program.Ref, module("stdlib", strings.TrimPrefix(info.GoVersion, "go")))
	if info.Main.Path != "" && info.Main.Version != "" && info.Main.Version != "(devel)" {
		b.put(program.Ref, module(info.Main.Path, info.Main.Version))
	}
	for _, dependency := range info.Deps {
		if dependency.Replace != nil {
			dependency = dependency.Replace
		}
		b.put(program.Ref, module(dependency.Path, dependency.Version))
	}
}

func module(name, version string) Component {
	purl := "pkg:golang/" + name + "@" + strings.ReplaceAll(version, "+", "%2B")
	return Component{Type: "library", Ref: purl, Name: name, Version: version, PURL: purl}
}

// addPackage adds a package of Debian, by its entry in dpkg's status. It has no line that goes on
// in the next one among those that are read.
func (b *bill) addPackage(status []byte) {
	fields := map[string]string{}
	for lines := bufio.NewScanner(bytes.NewReader(status)); lines.Scan(); {
		if key, value, ok := strings.Cut(lines.Text(), ": "); ok && !strings.HasPrefix(key, " ") {
			fields[key] = value
		}
	}
	if fields["Package"] == "" {
		return
	}
	purl := fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", fields["Package"], strings.ReplaceAll(fields["Version"], "+", "%2B"), fields["Architecture"])
	b.put(b.image.Ref, Component{Type: "library", Ref: purl, Name: fields["Package"], Version: fields["Version"], PURL: purl})
}

// put adds a component that is in another.
func (b *bill) put(in string, c Component) {
	b.components[c.Ref] = c
	if b.in[in] == nil {
		b.in[in] = map[string]bool{}
	}
	b.in[in][c.Ref] = true
}

func (b *bill) document() *Document {
	d := &Document{Format: "CycloneDX", Spec: "1.6", Version: 1, Metadata: Metadata{b.image}, Components: slices.Collect(maps.Values(b.components))}
	slices.SortFunc(d.Components, func(x, y Component) int { return cmp.Compare(x.Ref, y.Ref) })
	for _, ref := range slices.Sorted(maps.Keys(b.in)) {
		d.Dependencies = append(d.Dependencies, Dependency{ref, slices.Sorted(maps.Keys(b.in[ref]))})
	}
	return d
}
