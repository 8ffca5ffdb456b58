// SPDX-License-Identifier: Apache-2.0

package page

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const vendored = "static/vendor"

// npmPackage is a package of which files are vendored.
type npmPackage struct {
	Package, Version string
	// Integrity is that of the package's archive, as npm writes it.
	Integrity string
	Files     map[string]struct {
		// From is the path in the package.
		From, Integrity string
	}
}

func npmPackages(t *testing.T) []npmPackage {
	t.Helper()
	text, err := files.ReadFile(vendored + "/packages.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []npmPackage
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

func integrity(content []byte) string {
	sum := sha512.Sum512(content)
	return "sha512-" + base64.StdEncoding.EncodeToString(sum[:])
}

// The vendored files are those of which packages.json says where they are from, and nobody has
// edited them.
func TestVendored(t *testing.T) {
	known := map[string]bool{"packages.json": true}
	for _, from := range npmPackages(t) {
		license := false
		for name, file := range from.Files {
			content, err := files.ReadFile(vendored + "/" + name)
			if err != nil {
				t.Error(err)
				continue
			}
			if got := integrity(content); got != file.Integrity {
				t.Errorf("%s of %s %s has %s, and packages.json says %s", name, from.Package, from.Version, got, file.Integrity)
			}
			known[name] = true
			license = license || strings.HasSuffix(name, ".LICENSE")
		}
		if !license {
			t.Errorf("the license of %s is missing", from.Package)
		}
	}
	entries, err := files.ReadDir(vendored)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if !known[entry.Name()] {
			t.Errorf("packages.json does not say where %s is from", entry.Name())
		}
	}
}

// The vendored files are those of the packages on the npm registry.
func TestVendoredIsOfRegistry(t *testing.T) {
	if testing.Short() {
		t.Skip("it asks the npm registry: make test-all does")
	}
	for _, from := range npmPackages(t) {
		t.Run(from.Package, func(t *testing.T) {
			folder := t.TempDir()
			command := exec.CommandContext(t.Context(), "npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", folder, from.Package+"@"+from.Version)
			command.Dir = folder
			if output, err := command.CombinedOutput(); err != nil {
				t.Fatalf("%v: %v: %s", command, err, output)
			}
			archives, err := filepath.Glob(filepath.Join(folder, "*.tgz"))
			if err != nil || len(archives) != 1 {
				t.Fatalf("npm has packed %v: %v", archives, err)
			}
			packed, err := os.ReadFile(archives[0])
			if err != nil {
				t.Fatal(err)
			}
			if got := integrity(packed); got != from.Integrity {
				t.Errorf("the archive has %s, want %s", got, from.Integrity)
			}
			content := unpack(t, packed)
			for name, file := range from.Files {
				if got := integrity(content["package/"+file.From]); got != file.Integrity {
					t.Errorf("%s has %s in the package, and %s here", name, got, file.Integrity)
				}
			}
		})
	}
}

func unpack(t *testing.T, packed []byte) map[string][]byte {
	t.Helper()
	unzipped, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	content := map[string][]byte{}
	for archive := tar.NewReader(unzipped); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return content
		}
		if err != nil {
			t.Fatal(err)
		}
		if content[header.Name], err = io.ReadAll(archive); err != nil {
			t.Fatal(err)
		}
	}
}
