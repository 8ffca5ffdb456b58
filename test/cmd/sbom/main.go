// SPDX-License-Identifier: Apache-2.0

// Sbom writes what images are made of beside their archives, as CycloneDX.
package main

import (
	"fmt"
	"os"

	"github.com/berth-dev/berth/test/sbom"
)

func main() {
	if len(os.Args) == 1 {
		fmt.Fprintln(os.Stderr, "sbom ARCHIVE…: name archives that make images wrote")
		os.Exit(1)
	}
	for _, archive := range os.Args[1:] {
		out, err := sbom.Write(archive)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println("wrote", out)
	}
}
