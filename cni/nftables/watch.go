// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
)

// Watch calls lost when a table with a prefix in its name is deleted, as by a flush of all rules,
// also by Berth itself, and when it may have missed a deletion. It runs until ctx ends.
func Watch(ctx context.Context, prefixes []string, lost func()) error {
	for ctx.Err() == nil {
		if err := watch(ctx, prefixes, lost); err != nil {
			return err
		}
	}
	return nil
}

// watch ends when events were lost, because they came faster than they were read.
func watch(ctx context.Context, prefixes []string, lost func()) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("watch nftables: %w", err)
	}
	monitor := nftables.NewMonitor(nftables.WithMonitorAction(nftables.MonitorActionAny), nftables.WithMonitorObject(nftables.MonitorObjectTables))
	events, err := conn.AddGenerationalMonitor(monitor)
	if err != nil {
		return fmt.Errorf("watch nftables: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = monitor.Close() })
	defer stop()
	// A table may have been deleted before.
	lost()
	for event := range events {
		isLoss := func(e *nftables.MonitorEvent) bool { return isLoss(e, prefixes) }
		if slices.ContainsFunc(event.Changes, isLoss) && ctx.Err() == nil {
			lost()
		}
	}
	return nil
}

func isLoss(event *nftables.MonitorEvent, prefixes []string) bool {
	if event.Error != nil {
		return true
	}
	if event.Type != nftables.MonitorEventTypeDelTable {
		return false
	}
	table, ok := event.Data.(*nftables.Table)
	return !ok || slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(table.Name, p) })
}
