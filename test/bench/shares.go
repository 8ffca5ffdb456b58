// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"

	"github.com/berth-dev/berth/test/bench/report"
)

// functions are the functions whose share of a profile is worth a look.
var functions = []struct{ what, expression string }{
	{"Berth: plugin and book", `berth/(plugins|ipam)`},
	{"Berth: claim an address (Commit)", `berth/ipam\.\(\*IPAM\)\.Commit`},
	{"Berth: follow the API server", `berth/ipam/(client|store)|berth/ipam\.\(\*IPAM\)\.handler`},
	{"Berth: PreFilter, Filter, Score, Reserve", `floatingip\.\(\*Plugin\)\.(PreFilter|Filter|PreScore|Score|Reserve)`},
	{"scheduling cycle, with what it does in parallel", `scheduler\.\(\*Scheduler\)\.(schedulingCycle|findNodesThatPassFilters)|frameworkImpl\)\.RunScorePlugins`},
	{"stock NodeResourcesFit (it looks at every extended resource on every node)", `noderesources\.fitsRequest`},
	{"API server: validate custom resources", `customresource\.customResourceStrategy\.Validate`},
	{"API server: custom resources", `apiextensions-apiserver/pkg/apiserver\.\(\*crdHandler\)`},
	{"garbage collection", `runtime\.(gcBgMarkWorker|gcAssistAlloc)`},
}

var accounting = regexp.MustCompile(`(?m)^Showing nodes accounting for [^,]+, ([0-9.]+)% of`)

// shares looks into the CPU profiles.
func (b *bench) shares(ctx context.Context) error {
	profiles, err := filepath.Glob(filepath.Join(b.out, "*.pprof"))
	if err != nil {
		return err
	}
	b.report.Profiles = map[string][]report.Share{}
	for _, profile := range profiles {
		for _, f := range functions {
			output, err := exec.CommandContext(ctx, "go", "tool", "pprof", "-top", "-nodecount=100000", "-nodefraction=0", "-edgefraction=0", "-focus="+f.expression, profile).Output()
			if err != nil {
				return fmt.Errorf("look into %s: %w", profile, err)
			}
			if match := accounting.FindSubmatch(output); match != nil {
				percent, err := strconv.ParseFloat(string(match[1]), 64)
				if err != nil {
					return fmt.Errorf("look into %s: %w", profile, err)
				}
				b.report.Profiles[filepath.Base(profile)] = append(b.report.Profiles[filepath.Base(profile)], report.Share{What: f.what, Percent: percent})
			}
		}
	}
	return nil
}
