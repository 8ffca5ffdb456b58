// SPDX-License-Identifier: Apache-2.0

// Berth-iptables is iptables, ip6tables and their -save and -restore in the agent's image, for
// plugins of other projects. It finds the node's variant of iptables and executes it.
package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/xtables"
)

func main() {
	program := xtables.Choose().Program()
	err := unix.Exec(program, os.Args, os.Environ())
	fmt.Fprintf(os.Stderr, "berth-iptables: start %s: %v\n", program, err)
	os.Exit(1)
}
