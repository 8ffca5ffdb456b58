// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"time"

	"github.com/berth-dev/berth/cmd/kubectl-berth/audit"
	"github.com/berth-dev/berth/test/deploy"
)

// audit returns what "kubectl berth check" finds. There are no agents here.
func (w *world) audit() (findings []string) {
	w.T.Helper()
	auditor, err := deploy.Auditor(w.Config, audit.Options{Grace: 3 * time.Second})
	if err != nil {
		w.T.Fatal(err)
	}
	report, err := auditor.Run(w.Ctx)
	if err != nil {
		w.T.Fatal(err)
	}
	for _, f := range report.Findings {
		findings = append(findings, fmt.Sprintf("CHECK: %s: %s", f.Code, f.Text))
	}
	for _, text := range report.Unknown {
		findings = append(findings, "CHECK: could not find out "+text)
	}
	w.say("check compared %d addresses, %d pods and %d pools", report.Addresses, report.Pods, report.Pools)
	return findings
}
