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
	"github.com/berth-dev/berth/agent/policy/place"
	"github.com/berth-dev/berth/agent/policy/port"
	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/agent/policy/table"
	"github.com/berth-dev/berth/cni/leftover"
	"github.com/berth-dev/berth/cni/nftables"
)

// Leftovers lists the tables in the namespaces of pods, whose paths are in a folder. Package netfilter
// lists the node's table.
func Leftovers(folder string) ([]leftover.Item, error) {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for network namespaces: %w", err)
	}
	var items []leftover.Item
	var errs []error
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
				return errors.Join(table.New(path).Remove(context.Background()), gate.Open(path))
			}})
		}
	}
	return items, errors.Join(errs...)
}

// Sweep removes the rules of policies from the node and from the network namespaces of its pods, for an
// agent that enforces none: nobody would follow changes of the policies any more. It leaves a path that
// leads to no namespace of a pod.
func Sweep(ctx context.Context, namespaces []string) error {
	errs := []error{table.New("").Remove(ctx), port.Guard(nil)}
	for _, path := range namespaces {
		if isNode, err := place.IsNode(path); path == "" || isNode || err != nil {
			continue
		}
		errs = append(errs, table.New(path).Remove(ctx))
	}
	return errors.Join(errs...)
}

// hasTables returns whether a path leads to a namespace with tables of policies.
func hasTables(path string) (has bool, err error) {
	netns, err := ns.GetNS(path)
	var missing ns.NSPathNotExistErr
	var other ns.NSPathNotNSErr
	if errors.As(err, &missing) || errors.As(err, &other) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open network namespace %s: %w", path, err)
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
	return has, nil
}
