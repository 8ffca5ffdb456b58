// SPDX-License-Identifier: Apache-2.0

// Pause waits until it is killed. It needs a tenth of the memory and half of the threads of
// agnhost, which counts where a machine runs 2,000 of it.
package main

import (
	"fmt"
	"os"
	"syscall"
)

func main() {
	// A pipe into which nobody writes. Package os would have more threads for it.
	var pipe [2]int
	err := syscall.Pipe2(pipe[:], syscall.O_CLOEXEC)
	if err == nil {
		_, err = syscall.Read(pipe[0], make([]byte, 1))
	}
	fmt.Fprintln(os.Stderr, "pause:", err)
	os.Exit(1)
}
