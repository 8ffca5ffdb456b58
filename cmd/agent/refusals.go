// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"

	"github.com/berth-dev/berth/cni/netfilter"
)

// EventFirewall (Warning on Node): a firewall of the node, such as firewalld, refuses all packets
// that the node forwards to its pods or from them. The agent is not ready. Do: see
// docs/how-to/firewall.md.
const EventFirewall = "FirewallRefusesPods"

// tellRefusals returns ready, which then tells when a refusal of the node's firewall begins or is
// another one. Its caller makes one call at a time.
func tellRefusals(ready func(context.Context) error, tell func(error)) func(context.Context) error {
	told := ""
	return func(ctx context.Context) error {
		err := ready(ctx)
		refusal := ""
		if errors.Is(err, netfilter.ErrRefused) {
			refusal = err.Error()
		}
		if refusal != "" && refusal != told {
			tell(err)
		}
		told = refusal
		return err
	}
}
