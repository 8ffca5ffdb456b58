// SPDX-License-Identifier: Apache-2.0

// Krew packs kubectl-berth for krew: the programs of a folder, each below OS-ARCH, into archives
// with a manifest.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-dev/berth/test/krew"
)

func main() {
	from := flag.String("from", "", "folder with a program below each OS-ARCH")
	out := flag.String("out", "", "folder for the archives and the manifest")
	license := flag.String("license", "LICENSE", "file of the license")
	completion := flag.String("completion", "", "script kubectl_complete-berth")
	version := flag.String("version", "", "version, with a v")
	url := flag.String("url", "", "folder that the archives will be fetched from")
	flag.Parse()
	if err := run(*from, *out, *license, *completion, *version, *url); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(from, out, license, completion, version, url string) error {
	release := krew.Release{Version: version, URL: url, Programs: map[krew.Platform][]byte{}}
	var err error
	if release.License, err = os.ReadFile(license); err != nil {
		return fmt.Errorf("read the license: %w", err)
	}
	if release.Completion, err = os.ReadFile(completion); err != nil {
		return fmt.Errorf("read the script of the completion: %w", err)
	}
	for _, p := range krew.Platforms {
		if release.Programs[p], err = os.ReadFile(filepath.Join(from, p.String(), p.Program())); err != nil {
			return fmt.Errorf("read the program for %s: %w", p, err)
		}
	}
	return release.Write(out)
}
