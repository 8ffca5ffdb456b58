// SPDX-License-Identifier: Apache-2.0

// Package gate keeps packets from a pod while its network is made: from before its first interface
// until the rules of its policies are in the kernel. Nothing runs in the pod yet, but the kernel
// would reply for it. The gate can also keep packets from single interfaces of a running pod, while
// they are made again. It is a separate nftables table in the pod's network namespace, besides the
// table of package table.
package gate

import (
	"errors"
	"fmt"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/nftables"
	"github.com/berth-dev/berth/cni/rtnl"
)

// TableName is the name of the table, in the family inet.
const TableName = netfilter.TableName + "-gate"

// closed returns the table. Its nftables chain comes before all others.
func closed(interfaces []string) *nftables.Table {
	rules := []nftables.Rule{
		nftables.NewRule("packets of the pod to itself", nftables.IIFName.IsLink("lo"), nftables.Accept),
		nftables.NewRule("neighbour discovery", nftables.L4Proto.Is(unix.IPPROTO_ICMPV6),
			nftables.MessageType.Between([]byte{nftables.RouterSolicitation}, []byte{nftables.Redirect}), nftables.Accept),
	}
	for _, name := range interfaces {
		rules = append(rules, nftables.NewRule("everything else", nftables.IIFName.IsLink(name), nftables.Drop))
	}
	if len(interfaces) == 0 {
		rules = append(rules, nftables.NewRule("everything else", nftables.Drop))
	}
	return &nftables.Table{Family: nftables.INet, Name: TableName, Chains: []*nftables.Chain{{
		Name: "input", Base: nftables.Filter(nftables.Input, nftables.PriorityRaw), Rules: nftables.Rules(rules...),
	}}}
}

// Close keeps packets out of the namespace or, if interfaces are given, only packets that come by
// them. It lets packets of the pod to itself pass, and neighbour discovery, because plugins need it
// to add addresses. It blocks for the kernel and is idempotent.
func Close(netns string, interfaces ...string) error {
	err := inside(netns, func(tx *nftables.Transaction) { tx.Replace(closed(interfaces)) })
	if err != nil {
		return fmt.Errorf("close the network of the pod in %s until its policies are enforced: %w", netns, err)
	}
	return nil
}

// Open removes the table of Close, if it exists. It blocks for the kernel.
func Open(netns string) error {
	err := inside(netns, func(tx *nftables.Transaction) { tx.Delete(closed(nil)) })
	var gone ns.NSPathNotExistErr
	if errors.As(err, &gone) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open the network of the pod in %s: %w", netns, err)
	}
	return nil
}

func inside(netns string, add func(tx *nftables.Transaction)) error {
	return rtnl.InNetNS(netns, func() error {
		var tx nftables.Transaction
		add(&tx)
		return tx.Commit()
	})
}
