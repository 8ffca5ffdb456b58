// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berth-dev/berth/test/simulation"
)

// How long the commands take, and how much memory, with BERTH_TEST_KUBECTL_ADDRESSES
// addresses in pools of 1,000. It reports, and judges nothing.
func TestReadingMany(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv("BERTH_TEST_KUBECTL_ADDRESSES"))
	if n == 0 {
		t.Skip("set BERTH_TEST_KUBECTL_ADDRESSES, as make test-reading-many does")
	}
	w := simulation.NewWith(t, simulation.Options{Lasts: time.Hour})
	began := time.Now()
	w.HoldMany(n)
	t.Logf("created %d addresses in %s", n, time.Since(began).Round(time.Second))
	user := newUser(w, "")
	for _, args := range [][]string{
		{"who", "10.1.0.7"}, {"who", "10.1.3.255"}, {"where", "sts/web-3"}, {"pool"}, {"pool", "pool-7"}, {"free", "pool-7"},
		{"top", "owners"}, {"export"},
	} {
		var took []time.Duration
		var memory int64
		for range 5 {
			command := exec.CommandContext(w.Ctx, user.bin, append([]string{"berth"}, args...)...)
			command.Env = user.env
			began := time.Now()
			output, err := command.Output()
			took = append(took, time.Since(began))
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				t.Fatalf("%v: %v: %s", args, err, exit.Stderr)
			}
			if err != nil || len(output) == 0 {
				t.Fatalf("%v: %v, printed %d bytes", args, err, len(output))
			}
			memory = max(memory, command.ProcessState.SysUsage().(*syscall.Rusage).Maxrss)
		}
		slices.Sort(took)
		t.Logf("%-16s median %s, longest %s, memory %d MB", strings.Join(args, " "), took[2].Round(time.Millisecond), took[4].Round(time.Millisecond), memory/1024)
	}
}
