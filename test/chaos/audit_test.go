// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"time"

	"github.com/berth-dev/berth/cmd/kubectl-berth/audit"
)

// audit has what "kubectl berth check" says noted. There are no agents here.
func (w *world) audit() {
	w.T.Helper()
	auditor, err := audit.ForConfig(w.Config, audit.Options{Grace: 3 * time.Second})
	if err != nil {
		w.T.Fatal(err)
	}
	report, err := auditor.Run(w.Ctx)
	if err != nil {
		w.T.Fatal(err)
	}
	for _, f := range report.Findings {
		w.violation("CHECK: %s: %s", f.Code, f.Text)
	}
	for _, text := range report.Unknown {
		w.violation("CHECK: could not find out %s", text)
	}
	w.say("check compared %d addresses, %d pods and %d pools", report.Addresses, report.Pods, report.Pools)
}
