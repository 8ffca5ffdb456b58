// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// tool is a program of the machine that a lab runs.
type tool struct {
	program, pkg string // pkg is the Debian package
}

// tools are all programs of the machine that a lab runs.
func tools() []tool {
	return []tool{
		{"runc", "runc"},
		{"ip", "iproute2"},
		{"nsenter", "util-linux"},
		{"mount", "mount"},
		{"hostname", "hostname"},
		{"iptables-save", "iptables"}, // kube-proxy, kubelet
		{"nft", "nftables"},           // kube-proxy in mode nftables
		{"conntrack", "conntrack"},    // the rest are for tests to look and probe
		{"ipset", "ipset"},
		{"arping", "iputils-arping"},
		{"ping", "iputils-ping"},
	}
}

// Prepare makes the machine able to run labs: it installs the Debian packages
// that are missing and builds the programs that are missing or out of date.
// On other systems than Debian it says what is missing. It does nothing,
// quickly, when all is there.
func Prepare(ctx context.Context, w io.Writer) error { return prepare(ctx, newProgress(w)) }

func prepare(ctx context.Context, progress *progress) error {
	if os.Geteuid() != 0 {
		return errors.New("prepare the lab: must be root, to make namespaces and mounts")
	}
	if err := installTools(ctx, progress); err != nil {
		return err
	}
	return build(ctx, progress)
}

// installTools installs what missing finds.
func installTools(ctx context.Context, progress *progress) error {
	programs, packages := missing()
	if len(programs) == 0 {
		return nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("prepare the lab: these programs are missing: %s (on Debian they are in the packages %s)",
			strings.Join(programs, ", "), strings.Join(packages, ", "))
	}
	progress.say("installing %s", strings.Join(packages, ", "))
	install := append([]string{"install", "-y", "-q", "--no-install-recommends"}, packages...)
	if _, err := aptGet(ctx, install...); err != nil {
		// The list of packages may be old, or not there yet.
		if out, err := aptGet(ctx, "update", "-q"); err != nil {
			return fmt.Errorf("prepare the lab: apt-get update: %w: %s", err, tail(out, 5))
		}
		if out, err := aptGet(ctx, install...); err != nil {
			return fmt.Errorf("prepare the lab: apt-get install %s: %w: %s", strings.Join(packages, " "), err, tail(out, 5))
		}
	}
	if programs, _ := missing(); len(programs) > 0 {
		return fmt.Errorf("prepare the lab: still missing after the installation: %s", strings.Join(programs, ", "))
	}
	return nil
}

// missing returns the tools that the machine does not have, and their
// packages.
func missing() (programs, packages []string) {
	for _, t := range tools() {
		if _, err := exec.LookPath(t.program); err != nil {
			programs = append(programs, t.program)
			packages = append(packages, t.pkg)
		}
	}
	slices.Sort(packages)
	return programs, slices.Compact(packages)
}

func aptGet(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "apt-get", args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	return cmd.CombinedOutput()
}
