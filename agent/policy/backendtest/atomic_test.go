// SPDX-License-Identifier: Apache-2.0

package backendtest

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/agent/policy/ruleset/rulesettest"
)

// sink counts the datagrams that come to a port of the server.
func (w *topology) sink(at netip.AddrPort) *atomic.Int64 {
	w.t.Helper()
	var conn *net.UDPConn
	w.server.Run(func() (err error) { conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at)); return err })
	w.t.Cleanup(func() { _ = conn.Close() })
	var n atomic.Int64
	go func() {
		b := make([]byte, 100)
		for {
			if _, _, err := conn.ReadFromUDPAddrPort(b); err != nil {
				return
			}
			n.Add(1)
		}
	}()
	return &n
}

// traffic is floods of datagrams that are never answered, so that rules decide about each of
// them.
type traffic struct {
	w *topology
	// leaked counts the packets that came to denied ports, and arrived the packets to allowed ones.
	leaked, arrived []*atomic.Int64
	denied, sent    atomic.Int64
	stop            context.CancelFunc
	done            sync.WaitGroup
}

// floodPause is the wait between two datagrams of a flow: some in the millisecond of a transaction,
// and not so many that they leave the transactions no processor.
const floodPause = 100 * time.Microsecond

// flood sends to a denied port, and to an allowed one as fast as its packets arrive.
func (w *topology) flood() *traffic {
	w.t.Helper()
	ctx, stop := context.WithCancel(w.t.Context())
	f := &traffic{w: w, stop: stop}
	for _, e := range rulesettest.Both {
		denied, allowed := netip.AddrPortFrom(e.Server, rulesettest.OtherPort), netip.AddrPortFrom(e.Server, rulesettest.OpenPort)
		f.leaked, f.arrived = append(f.leaked, w.sink(denied)), append(f.arrived, w.sink(allowed))
		arrived := f.arrived[len(f.arrived)-1]
		for _, to := range []netip.AddrPort{denied, allowed} {
			conn, err := w.dial("udp", to, patience)
			if err != nil {
				w.t.Fatal(err)
			}
			f.done.Go(func() {
				defer conn.Close()
				var sent int64
				pace := time.NewTicker(floodPause)
				defer pace.Stop()
				for ctx.Err() == nil {
					<-pace.C
					_, err := conn.Write([]byte("x"))
					switch {
					case to == denied:
						f.denied.Add(1)
					case err != nil:
						w.t.Errorf("send to %s: %v", to, err)
						return
					default:
						sent++
						f.sent.Add(1)
						if !awaits(arrived, sent-20) {
							w.t.Errorf("of %d datagrams to %s %d arrived", sent, to, arrived.Load())
							return
						}
					}
				}
				if to == allowed && !awaits(arrived, sent) {
					w.t.Errorf("of %d datagrams to %s %d arrived", sent, to, arrived.Load())
				}
			})
		}
	}
	return f
}

// awaits waits until a counter has a value, and returns false where it does not come to have it.
func awaits(n *atomic.Int64, want int64) bool {
	if n.Load() >= want {
		return true
	}
	deadline, again := time.NewTimer(patience), time.NewTicker(50*time.Microsecond)
	defer deadline.Stop()
	defer again.Stop()
	for n.Load() < want {
		select {
		case <-deadline.C:
			return false
		case <-again.C:
		}
	}
	return true
}

// end ends the floods and returns how many datagrams leaked.
func (f *traffic) end() int64 {
	f.stop()
	f.done.Wait()
	var leaked int64
	for _, n := range f.leaked {
		leaked += n.Load()
	}
	f.w.t.Logf("%d denied datagrams, %d of them leaked; %d allowed ones, all of which arrived unless an error says otherwise", f.denied.Load(), leaked, f.sent.Load())
	return leaked
}

// During any change or replacement, no packet passes that rulesettest.Both the old and the new
// rules drop, and none is lost that rulesettest.Both accept.
func TestAtomic(t *testing.T) { forEach(t, testAtomic) }

func testAtomic(t *testing.T, b backend) {
	w := newTopology(t, b)
	all := rulesettest.Variants()
	w.apply(all[0])
	f := w.flood()
	for i := range b.changes {
		if i%3 == 0 {
			// A process that begins anew.
			w.table = b.Open(w.node.Path())
		}
		w.apply(all[i%len(all)])
	}
	if leaked := f.end(); leaked > 0 {
		t.Errorf("%d denied datagrams passed during %d changes", leaked, b.changes)
	}
}

// envApply makes this test's program an agent that applies rulesets to the namespace at the path
// until it is killed.
const envApply = "BERTH_TEST_APPLY"

// A process that is killed at any time leaves the old rules or the new ones.
func TestKilled(t *testing.T) { forEach(t, testKilled) }

func testKilled(t *testing.T, b backend) {
	if path := os.Getenv(envApply); path != "" {
		table := b.Open(path)
		all := rulesettest.Variants()
		for i := 0; ; i++ {
			if i%3 == 0 {
				table = b.Open(path)
			}
			if err := table.Apply(t.Context(), all[i%len(all)]); err != nil {
				t.Fatal(err)
			}
			fmt.Printf("applied %d\n", i)
		}
	}
	w := newTopology(t, b)
	w.apply(rulesettest.Isolated())
	f := w.flood()
	kills := 15
	if testing.Short() {
		kills = 5
	}
	for kill := range kills {
		agent := exec.Command(os.Args[0], "-test.run=^TestKilled$/^"+string(b.Backend)+"$")
		agent.Env = append(os.Environ(), envApply+"="+w.node.Path())
		out, err := agent.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := agent.Start(); err != nil {
			t.Fatal(err)
		}
		// It dies in one of the changes that follow.
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if n, ok := strings.CutPrefix(lines.Text(), "applied "); ok {
				if i, err := strconv.Atoi(n); err == nil && i >= 3+kill%7 {
					break
				}
			}
		}
		_ = agent.Process.Kill()
		_ = agent.Wait()
		if kill%5 == 0 {
			// The next one takes over its table.
			w.table = b.Open(w.node.Path())
			w.apply(rulesettest.Variants()[kill%len(rulesettest.Variants())])
			if err := w.table.Verify(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if leaked := f.end(); leaked > 0 {
		t.Errorf("%d denied datagrams passed", leaked)
	}
}

// A thread that worked in the namespace of a pod is not used for anything else.
func TestThreads(t *testing.T) { forEach(t, testThreads) }

func testThreads(t *testing.T, b backend) {
	netnstest.Need(t)
	pod := netnstest.New(t)
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	rounds := 5
	if testing.Short() {
		rounds = 1
	}
	var done sync.WaitGroup
	for range 20 {
		done.Go(func() {
			table := b.Open(pod.Path())
			for range rounds {
				// Errors come as others do the same.
				_ = table.Apply(t.Context(), rulesettest.Isolated())
				_, _ = table.Counters(t.Context())
				_ = table.Verify(t.Context())
				_ = table.Remove(t.Context())
				if now, err := os.Readlink("/proc/thread-self/ns/net"); err != nil || now != own {
					t.Errorf("the thread is in %s, not in %s, error %v", now, own, err)
				}
			}
		})
	}
	done.Wait()
	pod.Remove()
	if err := b.Open(pod.Path()).Remove(t.Context()); err != nil {
		t.Errorf("Remove() where the namespace is gone: %v", err)
	}
	if err := b.Open(pod.Path()).Apply(t.Context(), rulesettest.Isolated()); err == nil {
		t.Error("Apply() without a namespace succeeds")
	}
}

// A pod that moves between chains, while there are few of them or many, is in some chain all the
// time.
func TestAtomicMoves(t *testing.T) { forEach(t, testAtomicMoves) }

func testAtomicMoves(t *testing.T, b backend) {
	w := newTopology(t, b)
	w.apply(movedTo("i-server", 40))
	f := w.flood()
	for i := range b.changes / 4 {
		w.apply(movedTo([]string{"i-server", "i-zone", "i-area"}[i%3], []int{40, 40, 3, 41}[i%4]))
	}
	if leaked := f.end(); leaked > 0 {
		t.Errorf("%d denied datagrams passed during %d changes", leaked, b.changes/4)
	}
}

// movedTo returns the isolated ruleset with the server in a chain of another name, beside other
// pods with chains of their own.
func movedTo(name string, others int) *ruleset.Ruleset {
	rs := rulesettest.Isolated()
	rs = rulesettest.With(rs, rulesettest.Chain(name, ruleset.NoHook, rs.Chains["i-server"].Rules...))
	if name != "i-server" {
		delete(rs.Chains, "i-server")
	}
	for i, e := range rulesettest.Both {
		m := &ruleset.Map{Name: []string{"ingress4", "ingress6"}[i], Family: e.Family, Chains: map[netip.Addr]string{e.Server: name}}
		other := e.Server
		for n := range others {
			other = other.Next()
			chain := rulesettest.Chain(fmt.Sprintf("i-other%d", n), ruleset.NoHook, ruleset.Rule{Verdict: ruleset.Drop})
			m.Chains[other] = chain.Name
			rs = rulesettest.With(rs, chain)
		}
		rs = rulesettest.With(rs, m)
	}
	return rs
}
