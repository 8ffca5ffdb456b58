// SPDX-License-Identifier: Apache-2.0

// Package conflicttest asks networks for tests.
package conflicttest

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/berth-dev/berth/cni/conflict"
)

// Ask returns the MACs of the hosts that answer for addresses on a link of this goroutine's network
// namespace, each sorted. It takes a second.
func Ask(t testing.TB, link int, addrs ...netip.Addr) (map[netip.Addr][]string, error) {
	t.Helper()
	asker, err := conflict.OpenAsker(link, nil)
	if err != nil {
		return nil, err
	}
	hearing, stop := context.WithCancel(t.Context())
	defer stop()
	macs := map[netip.Addr][]string{}
	var mu sync.Mutex
	heard := make(chan error, 1)
	go func() {
		heard <- asker.Hear(hearing, func(a conflict.Answer) {
			mu.Lock()
			defer mu.Unlock()
			if mac := a.MAC.String(); slices.Contains(addrs, a.Address) && !slices.Contains(macs[a.Address], mac) {
				macs[a.Address] = append(macs[a.Address], mac)
			}
		}, func(conflict.Conflict) {})
	}()
	for range 3 { // a frame may get lost
		err = errors.Join(err, asker.Question(addrs))
		<-time.After(300 * time.Millisecond)
	}
	stop()
	err = errors.Join(err, <-heard, asker.Close())
	for _, all := range macs {
		slices.Sort(all)
	}
	return macs, err
}
