// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"

	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/cni/xtables"
)

// lockWait is how many seconds a program waits for the lock that all programs of variant Legacy
// share.
const lockWait = "10"

type programs struct{ xtables.Variant }

// Check returns an error that names the first missing program of a variant.
func Check(variant xtables.Variant) error {
	v := programs{variant}
	names := []string{"ipset"}
	for _, f := range ruleset.Families {
		names = append(names, v.program(f, "restore"), v.program(f, "save"))
	}
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			return fmt.Errorf("look for the program %s: %w", name, err)
		}
	}
	return nil
}

func (v programs) program(f ruleset.Family, action string) string {
	command := "iptables"
	if f == ruleset.IPv6 {
		command = "ip6tables"
	}
	return fmt.Sprintf("%s-%s-%s", command, v.Variant, action)
}

// inet6 exists if the kernel has IPv6. If the kernel was started without IPv6, ip6tables fails, and
// there are no IPv6 packets.
const inet6 = "/proc/thread-self/net/if_inet6"

func lacks(f ruleset.Family, inet6 string) bool {
	if f == ruleset.IPv4 {
		return false
	}
	_, err := os.Stat(inet6)
	return errors.Is(err, fs.ErrNotExist)
}

// restore changes the chains that the text names, at once, and no others. It waits for the lock of
// other programs, at most lockWait.
func (v programs) restore(ctx context.Context, f ruleset.Family, text []byte) error {
	if lacks(f, inet6) {
		return nil
	}
	_, err := run(ctx, text, v.program(f, "restore"), "--noflush", "--wait", lockWait)
	return err
}

// save returns the table security, with the packets and bytes of each rule.
func (v programs) save(ctx context.Context, f ruleset.Family) (string, error) {
	if lacks(f, inet6) {
		return "", nil
	}
	return run(ctx, nil, v.program(f, "save"), "--counters", "--table", TableName)
}

// changeSets runs ipset's commands in a text, one in each line. It stops at the first failure.
func changeSets(ctx context.Context, text []byte) error {
	_, err := run(ctx, text, "ipset", "-exist", "restore")
	return err
}

func saveSets(ctx context.Context) (string, error) { return run(ctx, nil, "ipset", "save") }

// run runs a program in the network namespace of the calling thread and returns its output. The
// error has the program's message.
func run(ctx context.Context, stdin []byte, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = bytes.NewReader(stdin)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = errors.Join(context.Cause(ctx), err)
		}
		text := strings.TrimSpace(said.String())
		if line := lineOf(stdin, text); line != "" {
			text += " (" + line + ")"
		}
		return "", fmt.Errorf("run %s %s: %w: %s", name, strings.Join(args, " "), err, text)
	}
	return out.String(), nil
}

// lineOf returns the input line that a program's error names, as in "Error occurred at line: 2" of
// iptables and "Error in line 2:" of ipset.
func lineOf(stdin []byte, said string) string {
	for _, before := range []string{"Error occurred at line: ", "Error in line ", "line "} {
		_, after, found := strings.Cut(said, before)
		if !found {
			continue
		}
		var number int
		if _, err := fmt.Sscanf(after, "%d", &number); err != nil {
			continue
		}
		if lines := strings.Split(string(stdin), "\n"); number >= 1 && number <= len(lines) {
			return lines[number-1]
		}
	}
	return ""
}
