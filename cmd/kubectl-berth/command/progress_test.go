// SPDX-License-Identifier: Apache-2.0

package command

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// A command that takes long is never mute, and one that does not says nothing.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		streams, _, out, errOut := genericiooptions.NewTestIOStreams()
		p, end := (&Call{IOStreams: streams}).Progress()
		began := time.Now()
		time.Sleep(pause + time.Second) //nolint:forbidigo // the clock is the test's
		p.Count("pods", 500, 0)
		p.Count("pods", 1000, 0)
		time.Sleep(pause) //nolint:forbidigo // the clock is the test's
		p.Doing(func() string { return fmt.Sprint("waited ", time.Since(began)) })
		time.Sleep(2 * pause) //nolint:forbidigo // the clock is the test's
		p.Say("done")
		time.Sleep(10 * pause) //nolint:forbidigo // the clock is the test's
		p.Count("writes", 3, 4)
		end()
		time.Sleep(pause) //nolint:forbidigo // the clock is the test's
		if diff := cmp.Diff("pods: 1000\nwaited 6s\nwaited 8s\ndone\n", errOut.String()); diff != "" || out.Len() > 0 {
			t.Errorf("-want +got\n%s%s", diff, out)
		}
	})
}
