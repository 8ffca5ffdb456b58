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

// audits runs kubectl berth check for the page.
type audits struct {
	call      *command.Call
	namespace string
}

func (a *audits) run(ctx context.Context) (*page.Findings, error) {
	namespace, err := a.call.BerthNamespace(ctx, a.namespace)
	if err != nil {
		return nil, err
	}
	auditor, err := audit.ForConfig(a.call.Config, audit.Options{Grace: grace, Agents: true, Namespace: namespace})
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
