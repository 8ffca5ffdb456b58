// SPDX-License-Identifier: Apache-2.0

package backendtest

import (
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/policy/enforce"
	"github.com/berth-dev/berth/agent/policy/iptables"
	"github.com/berth-dev/berth/agent/policy/table"
	"github.com/berth-dev/berth/cni/xtables"
)

// backend brings rulesets into the kernel.
type backend struct {
	name string
	// open returns the rules of the network namespace at a path, of a process that knows nothing of them.
	open func(path string) enforce.Table
	// changes is how many a test makes under traffic: programs take longer than a transaction.
	changes int
	// keepsCounts says that a process goes on with the counters of the one before.
	keepsCounts bool
}

var backends = []backend{
	{"nftables", func(path string) enforce.Table { return table.New(path) }, 1200, true},
	{"iptables-nft", func(path string) enforce.Table { return iptables.New(path, xtables.NFT) }, 150, false},
	{"iptables-legacy", func(path string) enforce.Table { return iptables.New(path, xtables.Legacy) }, 150, false},
}

// forEach runs a test with each backend.
func forEach(t *testing.T, test func(t *testing.T, b backend)) {
	netnstest.Need(t)
	for _, b := range backends {
		t.Run(b.name, func(t *testing.T) { test(t, b) })
	}
}
