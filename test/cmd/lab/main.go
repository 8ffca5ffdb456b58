// SPDX-License-Identifier: Apache-2.0

// Command lab makes and uses a real Kubernetes cluster on this machine, for
// Berth's tests and for trying things out.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	// A second Ctrl-C ends the command at once; `lab down` cleans up then.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:]))
}

// run returns the exit code: 0 success, 1 failure, 2 wrong usage, 130
// interrupted. For `exec` it returns the exit code of the command that it ran.
func run(ctx context.Context, args []string) int {
	root := newRoot()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	var exit *exec.ExitError
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitCode()
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "lab: interrupted:", err)
		return 130
	case errors.As(err, &usage):
		fmt.Fprintln(os.Stderr, "lab:", err)
		return 2
	default:
		fmt.Fprintln(os.Stderr, "lab:", err)
		return 1
	}
}

// usageError is a command line that makes no sense.
type usageError struct{ error }
