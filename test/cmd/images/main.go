// SPDX-License-Identifier: Apache-2.0

// Images writes Berth's container images as archives, without an engine or a registry.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/berth-dev/berth/test/deploy"
)

func main() {
	out := flag.String("out", "dist", "folder for the archives")
	registry := flag.String("registry", deploy.Registry, "registry and folder that the images are named after")
	version := flag.String("version", deploy.Version, "tag of the images")
	architectures := flag.String("arch", "amd64,arm64", "architectures, as Go calls them")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := deploy.Images(ctx, os.Stdout, *out, *registry, *version, strings.Split(*architectures, ",")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
