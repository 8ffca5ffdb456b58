// SPDX-License-Identifier: Apache-2.0

// Compile compiles programs, and says how much there is to compile and how far it is:
//
//	compile berth    Berth's programs, into bin
//	compile lab      the programs of a lab and the command lab, into test/bin
//	compile demo     what the demo needs of both, and the demo
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/berth-dev/berth/test/compile"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	begin := time.Now()
	say := func(format string, args ...any) {
		fmt.Printf("%6.1fs  %s\n", time.Since(begin).Seconds(), fmt.Sprintf(format, args...))
	}
	modules, err := modulesOf(os.Args[len(os.Args)-1])
	if err == nil {
		err = compile.Programs(ctx, say, modules...)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func modulesOf(what string) ([]compile.Module, error) {
	images := slices.Collect(maps.Keys(compile.Images))
	commands := map[string]string{"lab": "./cmd/lab"}
	switch what {
	case "berth", "lab":
	case "demo":
		images = compile.Installed
		commands["demo"] = "./cmd/demo"
	default:
		return nil, fmt.Errorf("compile %s: want berth, lab or demo", what)
	}
	var modules []compile.Module
	if what != "berth" {
		lab, err := compile.Lab()
		if err != nil {
			return nil, err
		}
		modules = append(lab, compile.Module{Dir: lab[0].Dir, Out: filepath.Join(lab[0].Dir, "bin"), Programs: commands})
	}
	if what != "lab" {
		programs := []string{"kubectl-berth"}
		for _, image := range images {
			programs = append(programs, compile.Images[image]...)
		}
		berth, err := compile.Berth(programs...)
		if err != nil {
			return nil, err
		}
		modules = append(modules, berth)
	}
	return modules, nil
}
