// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/berth-dev/berth/agent/netnstest"
)

const (
	port = 7777
	// flows are the sources of a Caller: routers share out connections.
	flows = 64
	// interval between two calls, of all flows in turn.
	interval = time.Millisecond
	header   = 8
)

// Answer has a host answer calls with its name until the test ends.
func Answer(t *testing.T, host *netnstest.Host, name string) {
	t.Helper()
	var conn *net.UDPConn
	host.Run(func() (err error) { conn, err = net.ListenUDP("udp", &net.UDPAddr{Port: port}); return err })
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		buffer := make([]byte, 100)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			_, _ = conn.WriteToUDPAddrPort(append(buffer[:n:n], name...), from)
		}
	}()
}

// Caller calls an address a thousand times a second, by 64 flows in turn, and notes who answers.
type Caller struct {
	t     *testing.T
	end   chan struct{}
	ended sync.Once
	group sync.WaitGroup
	conns []*net.UDPConn

	mu sync.Mutex
	// sent is the number of calls, the number of the last one.
	sent uint64
	// answered has the calls that were answered, last the last answer of each flow.
	answered map[uint64]answer
	last     [flows]answer
}

type answer struct {
	call uint64
	from string
	at   time.Time
}

// Call begins to call an address from a host, until the test ends.
func Call(t *testing.T, from *netnstest.Host, address string) *Caller {
	t.Helper()
	c := &Caller{t: t, end: make(chan struct{}), answered: map[uint64]answer{}}
	for flow := range flows {
		from.Run(func() error {
			conn, err := net.DialUDP("udp", nil, &net.UDPAddr{IP: net.ParseIP(address), Port: port})
			if err == nil {
				c.conns = append(c.conns, conn)
			}
			return err
		})
		c.group.Go(func() { c.listen(flow) })
	}
	c.group.Go(c.call)
	t.Cleanup(c.End)
	return c
}

// End ends the calls, also before the end of the test.
func (c *Caller) End() {
	c.ended.Do(func() {
		close(c.end)
		for _, conn := range c.conns {
			_ = conn.Close()
		}
		c.group.Wait()
	})
}

func (c *Caller) call() {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-c.end:
			return
		case <-tick.C:
		}
		c.mu.Lock()
		c.sent++
		call := c.sent
		c.mu.Unlock()
		// An error is an earlier call's: nobody listens, or the address is unreachable. That call has no
		// answer.
		_, _ = c.conns[call%flows].Write(binary.BigEndian.AppendUint64(nil, call))
	}
}

func (c *Caller) listen(flow int) {
	buffer := make([]byte, 100)
	for {
		n, err := c.conns[flow].Read(buffer)
		select {
		case <-c.end:
			return
		default:
		}
		if err != nil || n < header {
			continue
		}
		got := answer{binary.BigEndian.Uint64(buffer), string(buffer[header:n]), time.Now()}
		c.mu.Lock()
		c.answered[got.call] = got
		if got.call > c.last[flow].call {
			c.last[flow] = got
		}
		c.mu.Unlock()
	}
}

// Sent returns the number of calls so far.
func (c *Caller) Sent() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sent
}

// Answering waits until every flow has an answer to a call after mark, and returns who answered it
// how often.
func (c *Caller) Answering(mark uint64) map[string]int {
	c.t.Helper()
	var who map[string]int
	netnstest.Eventually(c.t, func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		who = map[string]int{}
		for _, last := range c.last {
			if last.call <= mark {
				return fmt.Errorf("nobody answers some of the flows; others are answered by %v", who)
			}
			who[last.from]++
		}
		return nil
	})
	return who
}

// Await waits until all flows are answered by name alone.
func (c *Caller) Await(name string) {
	c.t.Helper()
	netnstest.Eventually(c.t, func() error {
		if who := c.Answering(c.Sent()); who[name] != flows {
			return fmt.Errorf("%v answer, want %s alone", who, name)
		}
		return nil
	})
}

// Only fails the test where anybody but name answers one of the next 20 calls of each flow.
func (c *Caller) Only(name string) {
	c.t.Helper()
	mark := c.Sent()
	c.Answering(mark + 20*flows)
	c.OnlySince(mark, name)
}

// OnlySince fails the test where anybody but name has answered a call after mark.
func (c *Caller) OnlySince(mark uint64, name string) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for call, got := range c.answered {
		if call > mark && got.from != name {
			c.t.Errorf("call %d is answered by %s, want %s alone since call %d", call, got.from, name, mark)
			return
		}
	}
}

// First returns when name first answered a call after mark.
func (c *Caller) First(mark uint64, name string) (first time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for call, got := range c.answered {
		if call > mark && got.from == name && (first.IsZero() || got.at.Before(first)) {
			first = got.at
		}
	}
	return first
}

// Lost returns how many calls after mark and before the last one that every flow was answered after
// have no answer, and how many of them came one after another at most: a call is a millisecond.
func (c *Caller) Lost(mark uint64) (lost, longest int) {
	c.t.Helper()
	until := c.Sent()
	c.Answering(until)
	c.mu.Lock()
	defer c.mu.Unlock()
	row := 0
	for call := mark + 1; call <= until; call++ {
		if _, ok := c.answered[call]; ok {
			row = 0
			continue
		}
		lost, row = lost+1, row+1
		longest = max(longest, row)
	}
	return lost, longest
}
