// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/util/flowcontrol"
)

const (
	// mostOfSource and mostConnections limit the open connections of one source and of all. Each takes
	// 35 kB at most, from its first packet on.
	mostOfSource, mostConnections = 100, 400
	// sourceQPS and sourceBurst limit the reviews for tokens that one source shows, strangersQPS and
	// strangersBurst those for all sources together that have shown no token with a right yet. One
	// that did has knownQPS and knownBurst for itself.
	sourceQPS, sourceBurst       = 0.5, 20
	strangersQPS, strangersBurst = 20, 100
	knownQPS, knownBurst         = 10, 50
	// knownTTL is how long a token, and a source, is known after it had a right: an API server that
	// asks about a lost node may not have asked anything for hours.
	knownTTL = 24 * time.Hour
	// sources is how many tokens and sources are known at most, and how many strangers are told apart.
	sources = 1024
)

// sourceOf returns where a client is: its IPv4 address, or the /64 of its IPv6 address, as a host
// may have any address of that.
func sourceOf(remote string) netip.Prefix {
	// Only tests have remote ends without an address. All of them are one source.
	of, _ := netip.ParseAddrPort(remote)
	addr := of.Addr().Unmap().WithZone("")
	prefix, _ := addr.Prefix(min(addr.BitLen(), 64))
	return prefix
}

// doorkeeper says which tokens the API server is asked about. A new token costs a review, and
// whoever reaches the port can make them up: known callers are not to wait for that, nor the API
// server to be flooded. Safe for concurrent use.
type doorkeeper struct {
	// known has the tokens that had a right, and the limits of sources that showed one; strangers, the
	// limits of other sources.
	known, strangers *cache.LRUExpireCache
	all              flowcontrol.PassiveRateLimiter
}

func newDoorkeeper() *doorkeeper {
	return &doorkeeper{
		known: cache.NewLRUExpireCache(sources), strangers: cache.NewLRUExpireCache(sources),
		all: flowcontrol.NewTokenBucketPassiveRateLimiter(strangersQPS, strangersBurst),
	}
}

// admits returns whether the API server is to be asked about a token from a source.
func (d *doorkeeper) admits(shown token, from netip.Prefix) bool {
	if _, known := d.known.Get(shown); known {
		return true
	}
	if limit, known := d.known.Get(from); known {
		return accepts(limit)
	}
	limit, seen := d.strangers.Get(from)
	if !seen {
		limit = flowcontrol.NewTokenBucketPassiveRateLimiter(sourceQPS, sourceBurst)
		d.strangers.Add(from, limit, knownTTL)
	}
	return accepts(limit) && d.all.TryAccept()
}

func accepts(limit any) bool {
	limiter, _ := limit.(flowcontrol.PassiveRateLimiter)
	return limiter.TryAccept()
}

// knows notes that a token from a source had a right.
func (d *doorkeeper) knows(shown token, from netip.Prefix) {
	limit, known := d.known.Get(from)
	if !known {
		limit = flowcontrol.NewTokenBucketPassiveRateLimiter(knownQPS, knownBurst)
	}
	d.known.Add(from, limit, knownTTL)
	d.known.Add(shown, nil, knownTTL)
}

// entrance is a listener that closes connections beyond the limits at once. Otherwise whoever
// reaches the port could hold as many as memory has room for, and none would be left for others.
// Where all are taken, the source with the most makes room for one with fewer: a few hosts would
// shut out all others, among them the kubelet, which would restart the program.
type entrance struct {
	net.Listener

	mu  sync.Mutex
	all int
	of  map[netip.Prefix][]*visitor // the oldest first
}

func (e *entrance) Accept() (net.Conn, error) {
	for {
		conn, err := e.Listener.Accept()
		if err != nil {
			return nil, err
		}
		v := e.newVisitor(conn, sourceOf(conn.RemoteAddr().String()))
		admitted, instead := e.enter(v)
		if instead != nil {
			_ = instead.Close()
		}
		if admitted {
			return v, nil
		}
		_ = conn.Close()
	}
}

// enter counts a visitor, if there is room, maybe in place of another one, which the caller closes.
func (e *entrance) enter(v *visitor) (admitted bool, instead *visitor) {
	e.mu.Lock()
	defer e.mu.Unlock()
	has := len(e.of[v.from])
	if has >= mostOfSource {
		return false, nil
	}
	if e.all >= mostConnections {
		var most []*visitor
		for _, of := range e.of {
			if len(of) > len(most) {
				most = of
			}
		}
		if len(most) <= has+1 {
			return false, nil
		}
		instead = most[0]
		e.remove(instead)
	}
	e.all++
	e.of[v.from] = append(e.of[v.from], v)
	return true, instead
}

func (e *entrance) leave(v *visitor) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.remove(v)
}

// remove forgets a visitor, if it counts. The caller holds the lock.
func (e *entrance) remove(v *visitor) {
	i := slices.Index(e.of[v.from], v)
	if i < 0 {
		return
	}
	e.all--
	if e.of[v.from] = slices.Delete(e.of[v.from], i, i+1); len(e.of[v.from]) == 0 {
		delete(e.of, v.from)
	}
}

// visitor is a connection that counts until it is closed.
type visitor struct {
	net.Conn

	entrance *entrance
	from     netip.Prefix
}

func (e *entrance) newVisitor(conn net.Conn, from netip.Prefix) *visitor {
	return &visitor{Conn: conn, entrance: e, from: from}
}

func (v *visitor) Close() error {
	defer v.entrance.leave(v)
	return v.Conn.Close()
}
