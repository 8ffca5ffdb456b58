// SPDX-License-Identifier: Apache-2.0

package conflict

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Answers are the hosts that answered for an address.
type Answers struct {
	Address netip.Addr
	// MACs are distinct, in the order of their first answers.
	MACs []net.HardwareAddr
}

// Questions and the time that answers are waited for after each.
const (
	questions    = 3
	questionWait = 300 * time.Millisecond
)

// Ask asks a network which hosts have addresses, as an [Asker] does. It returns an entry for each address, in
// their order. It takes a second.
func Ask(ctx context.Context, link int, addrs []netip.Addr) ([]Answers, error) {
	answers := make([]Answers, len(addrs))
	for i, addr := range addrs {
		answers[i].Address = addr
	}
	err := askAndHear(ctx, link, addrs, func(a Answer) {
		i := slices.Index(addrs, a.Address)
		if i >= 0 && !slices.ContainsFunc(answers[i].MACs, func(known net.HardwareAddr) bool { return bytes.Equal(known, a.MAC) }) {
			answers[i].MACs = append(answers[i].MACs, a.MAC)
		}
	})
	if err != nil {
		err = fmt.Errorf("ask the network of link %d: %w", link, err)
	}
	return answers, err
}

func askAndHear(ctx context.Context, link int, addrs []netip.Addr, answered func(Answer)) error {
	a, err := OpenAsker(link, nil)
	if err != nil {
		return err
	}
	defer a.Close()
	hearing, stop := context.WithCancel(ctx)
	defer stop()
	var heard error
	done := make(chan struct{})
	var one sync.Mutex
	go func() {
		defer close(done)
		heard = a.Hear(hearing, func(answer Answer) {
			one.Lock()
			defer one.Unlock()
			answered(answer)
		}, func(Conflict) {})
	}()
	for range questions {
		err = a.Question(addrs)
		select {
		case <-time.After(questionWait):
		case <-done:
		}
	}
	stop()
	<-done
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errors.Join(err, heard)
}
