// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
)

// Watch calls lost when a table whose name begins with one of the prefixes is deleted, as by a
// flush of all rules, and when it may have missed that, until ctx ends. It also calls lost where
// Berth itself deletes one.
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
	// Tell of earlier deletions.
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
