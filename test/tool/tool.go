// SPDX-License-Identifier: Apache-2.0

// Package tool has the programs of the machine that tests in network namespaces and labs run.
package tool

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// packages has the Debian package of each program.
var packages = map[string]string{
	"runc":          "runc",
	"ip":            "iproute2",
	"nsenter":       "util-linux",
	"mount":         "mount",
	"hostname":      "hostname",
	"iptables-save": "iptables",  // kube-proxy, kubelet
	"nft":           "nftables",  // kube-proxy in mode nftables
	"conntrack":     "conntrack", // the rest are for tests to look and probe
	"ipset":         "ipset",
	"arping":        "iputils-arping",
	"ping":          "iputils-ping",
}

// Install installs the programs that the machine lacks, and says so before. On other systems than
// Debian it says what is missing. It does nothing, quickly, when all are there.
func Install(ctx context.Context, say func(format string, args ...any)) error {
	programs, packages := missing()
	if len(programs) == 0 {
		return nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("these programs are missing: %s (on Debian they are in the packages %s)", strings.Join(programs, ", "), strings.Join(packages, ", "))
	}
	say("installing %s", strings.Join(packages, ", "))
	install := append([]string{"install", "-y", "-q", "--no-install-recommends"}, packages...)
	if aptGet(ctx, install...) != nil {
		// The list of packages may be old, or not there yet.
		if err := aptGet(ctx, "update", "-q"); err != nil {
			return err
		}
		if err := aptGet(ctx, install...); err != nil {
			return err
		}
	}
	if programs, _ := missing(); len(programs) > 0 {
		return fmt.Errorf("still missing after the installation: %s", strings.Join(programs, ", "))
	}
	return nil
}

// missing returns the programs that the machine does not have, and their Debian packages, in order.
func missing() (programs, from []string) {
	for program, pkg := range packages {
		if _, err := exec.LookPath(program); err != nil {
			programs, from = append(programs, program), append(from, pkg)
		}
	}
	slices.Sort(programs)
	slices.Sort(from)
	return programs, slices.Compact(from)
}

func aptGet(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "apt-get", args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if out, err := cmd.CombinedOutput(); err != nil {
		lines := strings.Split(strings.TrimSpace(string(out)), "\n")
		return fmt.Errorf("apt-get %s: %w: %s", strings.Join(args, " "), err, strings.Join(lines[max(0, len(lines)-5):], "\n"))
	}
	return nil
}
