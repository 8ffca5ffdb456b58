// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/berth-dev/berth/agent/policy/gate"
	"github.com/berth-dev/berth/agent/policy/iptables"
	"github.com/berth-dev/berth/agent/policy/place"
	"github.com/berth-dev/berth/agent/policy/port"
	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/cni/leftover"
	"github.com/berth-dev/berth/cni/nftables"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/xtables"
)

// Leftovers lists the rules of policies in iptables of the node and in the namespaces of pods,
// whose paths are in a folder. Package netfilter lists the node's nftables table.
func Leftovers(folder string) ([]leftover.Item, error) {
	var items []leftover.Item
	var errs []error
	onNode, err := hasIPTables("")
	errs = append(errs, err)
	if onNode {
		items = append(items, leftover.Item{Name: "rules of network policies in iptables", Remove: func() error { return removeOthers(context.Background(), "", "") }})
	}
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, fmt.Errorf("look for network namespaces: %w", err))
	}
	for _, entry := range entries {
		path := filepath.Join(folder, entry.Name())
		if isNode, err := place.IsNode(path); isNode || err != nil {
			errs = append(errs, err)
			continue
		}
		has, err := hasTables(path)
		if err != nil {
			errs = append(errs, err)
		}
		if has {
			items = append(items, leftover.Item{Name: "rules of network policies in network namespace " + path, Remove: func() error {
				return errors.Join(removeOthers(context.Background(), path, ""), gate.Open(path))
			}})
		}
	}
	return items, errors.Join(errs...)
}

// Sweep removes the rules of policies from the node and from the network namespaces of its pods,
// for an agent that enforces no policies: nobody would update the rules any more. It skips a path
// that is not the namespace of a pod.
func Sweep(ctx context.Context, namespaces []string) error {
	errs := []error{removeOthers(ctx, "", ""), port.Guard(nil)}
	for _, path := range namespaces {
		if isNode, err := place.IsNode(path); path == "" || isNode || err != nil {
			continue
		}
		errs = append(errs, removeOthers(ctx, path, ""))
	}
	return errors.Join(errs...)
}

func hasTables(path string) (has bool, err error) {
	netns, err := rtnl.FindNS(path)
	if netns == nil || err != nil {
		return false, err
	}
	defer netns.Close()
	err = netns.Do(func(ns.NetNS) error {
		tables, err := nftables.Tables(0)
		for _, t := range tables {
			has = has || strings.HasPrefix(t.Name, ruleset.TableName) || t.Name == gate.TableName
		}
		return err
	})
	if err != nil {
		return false, fmt.Errorf("list nftables tables in network namespace %s: %w", path, err)
	}
	if has {
		return true, nil
	}
	return hasIPTables(path)
}

func hasIPTables(netns string) (has bool, err error) {
	var errs []error
	for _, v := range xtables.Variants {
		if iptables.Check(v) == nil {
			exists, err := iptables.New(netns, v).Exists(context.Background())
			has, errs = has || exists, append(errs, err)
		}
	}
	return has, errors.Join(errs...)
}
