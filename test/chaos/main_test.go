// SPDX-License-Identifier: Apache-2.0

// Package chaos runs berth-scheduler and berth-controller on a real API server
// with kube-controller-manager, imitated nodes and pods of all workload kinds, and
// does to them whatever may happen to them: see [actions]. After every round the
// dust settles, and package judge, which watches all the time, has to find
// nothing wrong.
//
// One seed draws everything that is done. It is printed, and given as
// BERTH_TEST_SEED draws the same again; operations.log has each action with
// its time. A round that fails leaves its logs in a folder that it names:
// operations.log, the history of all addresses, the logs of all programs, the
// API server's audit log.
package chaos

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/berth-dev/berth/ipam/seedtest"
	"github.com/berth-dev/berth/test/simulation"
)

// settings of a run, from the environment.
type settings struct {
	seed   uint64
	rounds int
	pods   int // about as many live at once
	nodes  int
	steps  int // in a round
	// pause between two actions is shorter than this.
	pause time.Duration
	// dir gets the logs when a round fails.
	dir string
}

func settingsFromEnv(t *testing.T) settings {
	t.Helper()
	s, milliseconds := settings{seed: seedtest.Seed(t), dir: os.Getenv("CHAOS_DIR")}, 0
	for _, number := range []struct {
		name  string
		value *int
		short int
	}{
		{"CHAOS_ROUNDS", &s.rounds, 3},
		{"CHAOS_PODS", &s.pods, 240},
		{"CHAOS_NODES", &s.nodes, 8},
		{"CHAOS_STEPS", &s.steps, 50},
		{"CHAOS_PAUSE", &milliseconds, 250},
	} {
		*number.value = number.short
		if text := os.Getenv(number.name); text != "" {
			n, err := strconv.Atoi(text)
			if err != nil || n < 1 {
				t.Fatalf("%s: %q is not a number of at least 1", number.name, text)
			}
			*number.value = n
		}
	}
	s.pause = time.Duration(milliseconds) * time.Millisecond
	return s
}

func TestMain(m *testing.M) { simulation.Main(m, "TestConfigurationIsKept") }
