// SPDX-License-Identifier: Apache-2.0

//go:build faultpoints

package fault

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Point marks the place after the named side effect.
func Point(name string) {
	if file := os.Getenv(EnvLog); file != "" {
		appendLine(file, name)
	}
	file := os.Getenv(EnvKill)
	if file == "" {
		return
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return
	}
	want, rest, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	if want != name {
		return
	}
	if n, err := strconv.Atoi(rest); err == nil && n > 1 {
		_ = os.WriteFile(file, fmt.Appendf(nil, "%s %d", want, n-1), 0o600)
		return
	}
	_ = os.WriteFile(file, nil, 0o600)
	if os.Getenv("CNI_COMMAND") != "" {
		_ = syscall.Kill(os.Getppid(), syscall.SIGKILL)
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

func appendLine(file, line string) {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	_, _ = fmt.Fprintln(f, line)
}
