// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"time"

	"github.com/berth-dev/berth/cmd/kubectl-berth/audit"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/page"
)

// grace is how long something must be wrong, without a change, to be a finding, as for kubectl berth check.
const grace = 20 * time.Second

// check runs kubectl berth check for the page.
func check(ctx context.Context, call *command.Call) (*page.Findings, error) {
	auditor, err := audit.ForConfig(call.Config, audit.Options{Grace: grace, Agents: true, Namespace: call.System})
	if err != nil {
		return nil, err
	}
	report, err := auditor.Run(ctx)
	if err != nil {
		return nil, err
	}
	auditor.AddAdmission(ctx, report)
	said := &page.Findings{At: time.Now(), Unknown: report.Unknown}
	for i := range report.Findings {
		finding := &report.Findings[i]
		said.Items = append(said.Items, page.Finding{Code: string(finding.Code), Object: finding.Objects[0].String(), Text: finding.Text, Command: finding.Command})
	}
	return said, nil
}
