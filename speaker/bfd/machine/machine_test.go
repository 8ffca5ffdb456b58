// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bfd"
)

const (
	own, others = 0x1001, 0x2002
	ms          = time.Millisecond
)

var start = time.Date(2026, time.November, 30, 12, 0, 0, 0, time.UTC)

func middle() float64 { return 0.5 }

func usual() Config { return Config{Interval: 300 * ms, Multiplier: 3} }

// from returns a packet of the router.
func from(state bfd.StateType, change func(*bfd.BFDHeader)) []byte {
	p := &bfd.BFDHeader{Version: 1, State: state, DetectTimeMultiplier: 3, MyDiscriminator: others, YourDiscriminator: own, DesiredMinTxInterval: 300_000, RequiredMinRxInterval: 300_000}
	if state != bfd.StateUp {
		p.DesiredMinTxInterval = 1_000_000
	}
	if change != nil {
		change(p)
	}
	out, err := p.MarshalBinary()
	if err != nil {
		panic(err)
	}
	return out
}

// text writes a packet that the session sends.
func text(t *testing.T, packet []byte) string {
	t.Helper()
	if packet == nil {
		return ""
	}
	p := &bfd.BFDHeader{}
	if err := p.UnmarshalBinary(packet); err != nil {
		t.Fatal(err)
	}
	if p.Version != 1 || p.MyDiscriminator != own || p.DetectTimeMultiplier != 3 || p.RequiredMinRxInterval != 300_000 || packet[1]&0x0f != 0 {
		t.Errorf("sends %x", packet)
	}
	line := fmt.Sprintf("%s to %x every %d ms", p.State, p.YourDiscriminator, p.DesiredMinTxInterval/1000)
	for name, is := range map[string]bool{" poll": p.Poll, " final": p.Final, ": " + p.Diagnostic.String(): p.Diagnostic != 0} {
		if is {
			line += name
		}
	}
	return line
}

// snapshot is all that a session is.
func snapshot(m *Machine) string {
	return fmt.Sprint(m.state, m.why, m.peer, m.polling, m.interval, m.sent, m.transmit, m.expire)
}

// Each case is a life of a session, in steps: "in" is what the router says, "at" what has been sent
// at a time.
func TestMachine(t *testing.T) {
	type step struct {
		at   time.Duration // since the start
		in   []byte        // nil: nothing
		want string        // sent in answer, or by the time
		is   bfd.StateType
	}
	const down, init, up = "down to 2002 every 1000 ms", "init to 2002 every 1000 ms", "up to 2002 every 300 ms"
	const silence, told = ": control detection time expired", ": neighbor signaled session down"
	first := step{0, nil, "down to 0 every 1000 ms", bfd.StateDown}
	toUp := []step{first, {10 * ms, from(bfd.StateDown, nil), init, bfd.StateInit}, {20 * ms, from(bfd.StateUp, nil), up + " poll", bfd.StateUp}}
	then := func(more ...step) []step { return append(append([]step(nil), toUp...), more...) }
	for name, test := range map[string]struct {
		steps []step
		// why and losses are of the last state.
		why    string
		losses int
	}{
		"nobody answers: a packet a second":        {[]step{first, {874 * ms, nil, "", bfd.StateDown}, {875 * ms, nil, "down to 0 every 1000 ms", bfd.StateDown}, {1749 * ms, nil, "", bfd.StateDown}, {1750 * ms, nil, "down to 0 every 1000 ms", bfd.StateDown}}, "says nothing", 0},
		"the router does not know the session yet": {[]step{first, {10 * ms, from(bfd.StateDown, func(p *bfd.BFDHeader) { p.YourDiscriminator = 0 }), init, bfd.StateInit}}, "does not hear this node", 0},
		"the router is first":                      {[]step{first, {10 * ms, from(bfd.StateInit, nil), up + " poll", bfd.StateUp}}, "", 0},
		"both at once":                             {[]step{first, {10 * ms, from(bfd.StateDown, nil), init, bfd.StateInit}, {20 * ms, from(bfd.StateInit, nil), up + " poll", bfd.StateUp}}, "", 0},
		"the interval is polled until the answer": {then(
			step{262 * ms, nil, "", bfd.StateUp}, step{263 * ms, nil, up + " poll", bfd.StateUp},
			step{300 * ms, from(bfd.StateUp, func(p *bfd.BFDHeader) { p.Final = true }), "", bfd.StateUp}, step{526 * ms, nil, up, bfd.StateUp}), "", 0},
		"a poll is answered at once, and its answer polls not": {then(step{100 * ms, from(bfd.StateUp, func(p *bfd.BFDHeader) { p.Poll = true }), up + " final", bfd.StateUp}), "", 0},
		"Up says nothing to Down":                              {[]step{first, {10 * ms, from(bfd.StateUp, nil), "", bfd.StateDown}}, "does not hear this node", 0},
		"Init stays at Down":                                   {[]step{first, {10 * ms, from(bfd.StateDown, nil), init, bfd.StateInit}, {20 * ms, from(bfd.StateDown, nil), "", bfd.StateInit}}, "does not hear this node", 0},
		"the router says Down":                                 {then(step{100 * ms, from(bfd.StateDown, nil), down + told, bfd.StateDown}), "does not hear this node", 1},
		"the router restarted":                                 {then(step{100 * ms, from(bfd.StateDown, func(p *bfd.BFDHeader) { p.MyDiscriminator, p.YourDiscriminator = 0x3003, 0 }), "down to 3003 every 1000 ms" + told, bfd.StateDown}), "does not hear this node", 1},
		"AdminDown is no loss":                                 {then(step{100 * ms, from(bfd.StateAdminDown, nil), down + told, bfd.StateDown}), "has turned BFD off", 0},
		"AdminDown of Init":                                    {[]step{first, {10 * ms, from(bfd.StateDown, nil), init, bfd.StateInit}, {20 * ms, from(bfd.StateAdminDown, nil), down + told, bfd.StateDown}}, "has turned BFD off", 0},
		"AdminDown of Down":                                    {[]step{first, {10 * ms, from(bfd.StateAdminDown, nil), "", bfd.StateDown}}, "has turned BFD off", 0},
		"silence": {then(step{263 * ms, nil, up + " poll", bfd.StateUp}, step{526 * ms, nil, up + " poll", bfd.StateUp}, step{789 * ms, nil, up + " poll", bfd.StateUp},
			step{919 * ms, nil, "", bfd.StateUp}, step{920 * ms, nil, "down to 0 every 1000 ms" + silence, bfd.StateDown}), "fell silent", 1},
		"silence in Init is no loss": {[]step{first, {10 * ms, from(bfd.StateDown, nil), init, bfd.StateInit}, {875 * ms, nil, init, bfd.StateInit}, {1750 * ms, nil, init, bfd.StateInit}, {2625 * ms, nil, init, bfd.StateInit},
			{3010 * ms, nil, "down to 0 every 1000 ms" + silence, bfd.StateDown}}, "says nothing", 0},
		"a slower router: its interval, its detection": {[]step{first, {10 * ms, from(bfd.StateInit, func(p *bfd.BFDHeader) {
			p.DetectTimeMultiplier, p.DesiredMinTxInterval, p.RequiredMinRxInterval = 5, 500_000, 400_000
		}), up + " poll", bfd.StateUp},
			{349 * ms, nil, "", bfd.StateUp}, {350 * ms, nil, up + " poll", bfd.StateUp}, {700 * ms, nil, up + " poll", bfd.StateUp}, {2509 * ms, nil, up + " poll", bfd.StateUp}, {2510 * ms, nil, "down to 0 every 1000 ms" + silence, bfd.StateDown}}, "fell silent", 1},
		"a faster router is heard as often as agreed": {[]step{first, {10 * ms, from(bfd.StateInit, func(p *bfd.BFDHeader) { p.DesiredMinTxInterval, p.RequiredMinRxInterval = 50_000, 50_000 }), up + " poll", bfd.StateUp},
			{263 * ms, nil, up + " poll", bfd.StateUp}, {909 * ms, nil, up + " poll", bfd.StateUp}, {910 * ms, nil, "down to 0 every 1000 ms" + silence, bfd.StateDown}}, "fell silent", 1},
		"a router that takes no packets gets none, but the answer to its poll": {[]step{first, {10 * ms, from(bfd.StateInit, func(p *bfd.BFDHeader) { p.RequiredMinRxInterval = 0 }), up + " poll", bfd.StateUp},
			{800 * ms, nil, "", bfd.StateUp}, {810 * ms, from(bfd.StateUp, func(p *bfd.BFDHeader) { p.Poll, p.RequiredMinRxInterval = true, 0 }), up + " final", bfd.StateUp},
			{1709 * ms, nil, "", bfd.StateUp}, {1710 * ms, nil, "down to 0 every 1000 ms" + silence, bfd.StateDown}}, "fell silent", 1},
		"Up again": {then(step{100 * ms, from(bfd.StateDown, nil), down + told, bfd.StateDown}, step{110 * ms, from(bfd.StateInit, nil), up + " poll", bfd.StateUp}), "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			m := New(usual(), own, middle, start)
			for _, s := range test.steps {
				now := start.Add(s.at)
				var got string
				if s.in != nil {
					reply, err := m.Receive(now, s.in, 255)
					if err != nil {
						t.Fatalf("at %v: %v", s.at, err)
					}
					got = text(t, reply)
				}
				got += text(t, m.Advance(now))
				if is := m.State().StateType; got != s.want || is != s.is {
					t.Fatalf("at %v: sends %q and is %s, want %q and %s", s.at, got, is, s.want, s.is)
				}
				if again := m.Advance(now); again != nil {
					t.Fatalf("at %v: sends twice", s.at)
				}
				if !m.Next().After(now) {
					t.Fatalf("at %v: something is due at %v", s.at, m.Next())
				}
			}
			if s := m.State(); s.Losses != test.losses || !strings.HasPrefix(s.Why, test.why) || test.why == "" && s.Why != "" {
				t.Errorf("lost %d times, %q; want %d, %q", s.Losses, s.Why, test.losses, test.why)
			}
		})
	}
}

// refused are datagrams that nothing comes of, with what is said about them.
func refused() map[string]struct {
	datagram []byte
	hops     int
	want     string
} {
	type datagram = struct {
		datagram []byte
		hops     int
		want     string
	}
	flag := func(bits byte) []byte { p := from(bfd.StateDown, nil); p[flagsAt] |= bits; return p }
	return map[string]datagram{
		"forwarded":                     {from(bfd.StateDown, nil), 254, "TTL 254"},
		"no TTL":                        {from(bfd.StateDown, nil), -1, "TTL -1"},
		"another session":               {from(bfd.StateUp, func(p *bfd.BFDHeader) { p.YourDiscriminator++ }), 255, "another session"},
		"another session, Down":         {from(bfd.StateDown, func(p *bfd.BFDHeader) { p.YourDiscriminator++ }), 255, "another session"},
		"Up without a session":          {from(bfd.StateUp, func(p *bfd.BFDHeader) { p.YourDiscriminator = 0 }), 255, "without naming"},
		"Init without a session":        {from(bfd.StateInit, func(p *bfd.BFDHeader) { p.YourDiscriminator = 0 }), 255, "without naming"},
		"nobody's":                      {from(bfd.StateDown, func(p *bfd.BFDHeader) { p.MyDiscriminator = 0 }), 255, "version 1"},
		"no multiplier":                 {from(bfd.StateDown, func(p *bfd.BFDHeader) { p.DetectTimeMultiplier = 0 }), 255, "version 1"},
		"version 0":                     {from(bfd.StateDown, func(p *bfd.BFDHeader) { p.Version = 0 }), 255, "version 1"},
		"multipoint":                    {flag(flagMultipoint), 255, "version 1"},
		"authentication":                {flag(flagAuthentication), 255, "authentication"},
		"authentication with a section": {append(append(flag(flagAuthentication)[:3:3], append([]byte{33}, from(bfd.StateDown, nil)[4:]...)...), 1, 9, 1, 's', 'e', 'c', 'r', 'e', 't'), 255, "authentication"},
		"empty":                         {nil, 255, "cannot be read"},
		"cut":                           {from(bfd.StateDown, nil)[:23], 255, "cannot be read"},
		"length":                        {append(from(bfd.StateDown, nil), 0), 255, "cannot be read"},
	}
}

func TestRefused(t *testing.T) {
	for name, test := range refused() {
		for _, before := range [][]byte{nil, from(bfd.StateDown, nil), from(bfd.StateInit, nil)} {
			m := New(usual(), own, middle, start)
			m.Advance(start)
			if before != nil {
				if _, err := m.Receive(start, before, 255); err != nil {
					t.Fatal(err)
				}
			}
			was := snapshot(m)
			reply, err := m.Receive(start.Add(ms), test.datagram, test.hops)
			if err == nil || !strings.Contains(err.Error(), test.want) || reply != nil {
				t.Errorf("%s: answers %x, %v; want an error with %q", name, reply, err, test.want)
			}
			if is := snapshot(m); is != was {
				t.Errorf("%s: is %s, want %s", name, is, was)
			}
		}
	}
}

func TestMultihop(t *testing.T) {
	config := usual()
	config.Multihop = true
	m := New(config, own, middle, start)
	if _, err := m.Receive(start, from(bfd.StateInit, nil), 17); err != nil || m.State().StateType != bfd.StateUp {
		t.Errorf("is %s, %v", m.State().StateType, err)
	}
}

// An ended session says AdminDown, and nothing else ever.
func TestEnd(t *testing.T) {
	m := New(usual(), own, middle, start)
	m.Advance(start)
	if _, err := m.Receive(start, from(bfd.StateInit, nil), 255); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if got := text(t, m.End(start)); got != "admin down to 2002 every 1000 ms: administratively down" {
			t.Errorf("says %q", got)
		}
	}
	was := snapshot(m)
	if reply, err := m.Receive(start, from(bfd.StateDown, nil), 255); err == nil || reply != nil {
		t.Errorf("answers %x, %v", reply, err)
	}
	if got := m.Advance(start.Add(time.Hour)); got != nil || snapshot(m) != was || m.State().Losses != 0 {
		t.Errorf("says %x, is %s", got, snapshot(m))
	}
}

// The time between packets is from 75 to 100 percent of the interval.
func TestJitter(t *testing.T) {
	for number, want := range map[float64]time.Duration{0: 300 * ms, 0.999: 225 * ms} {
		m := New(usual(), own, func() float64 { return number }, start)
		m.Advance(start)
		if _, err := m.Receive(start, from(bfd.StateInit, nil), 255); err != nil {
			t.Fatal(err)
		}
		if got := m.Next().Sub(start); got < want || got > want+ms {
			t.Errorf("with %v a packet is due after %v, want %v", number, got, want)
		}
	}
}

// model is a router, written by the tables of RFC 5880 and apart from the machine.
type model struct {
	discriminator, knows uint32
	state                bfd.StateType
	transmits, receives  time.Duration
	multiplier           uint8
	theirs               time.Duration // what the other side takes
	detection            time.Duration
	heard, next          time.Time
	poll                 bool
}

var moves = map[[2]bfd.StateType]bfd.StateType{
	{bfd.StateDown, bfd.StateDown}: bfd.StateInit, {bfd.StateDown, bfd.StateInit}: bfd.StateUp,
	{bfd.StateInit, bfd.StateInit}: bfd.StateUp, {bfd.StateInit, bfd.StateUp}: bfd.StateUp, {bfd.StateInit, bfd.StateAdminDown}: bfd.StateDown,
	{bfd.StateUp, bfd.StateDown}: bfd.StateDown, {bfd.StateUp, bfd.StateAdminDown}: bfd.StateDown,
}

func (r *model) desired() time.Duration {
	if r.state == bfd.StateUp {
		return r.transmits
	}
	return max(time.Second, r.transmits)
}

func (r *model) packet(final bool) []byte {
	return from(r.state, func(p *bfd.BFDHeader) {
		p.MyDiscriminator, p.YourDiscriminator, p.DetectTimeMultiplier, p.Final, p.Poll = r.discriminator, r.knows, r.multiplier, final, r.poll && !final
		p.DesiredMinTxInterval, p.RequiredMinRxInterval = uint32(r.desired()/time.Microsecond), uint32(r.receives/time.Microsecond)
	})
}

func (r *model) hear(now time.Time, datagram []byte) (replies [][]byte) {
	p := &bfd.BFDHeader{}
	if err := p.UnmarshalBinary(datagram); err != nil || p.YourDiscriminator != 0 && p.YourDiscriminator != r.discriminator {
		return nil
	}
	r.knows, r.heard, r.theirs = p.MyDiscriminator, now, microseconds(p.RequiredMinRxInterval)
	r.detection = time.Duration(p.DetectTimeMultiplier) * max(r.receives, microseconds(p.DesiredMinTxInterval))
	if p.Final {
		r.poll = false
	}
	if to, ok := moves[[2]bfd.StateType{r.state, p.State}]; ok {
		r.state, r.poll, r.next = to, to == bfd.StateUp, now
	}
	if p.Poll {
		replies = append(replies, r.packet(true))
	}
	return replies
}

func (r *model) advance(now time.Time, random *rand.Rand) []byte {
	if !r.heard.IsZero() && !now.Before(r.heard.Add(r.detection)) {
		r.heard, r.knows, r.state, r.poll = time.Time{}, 0, bfd.StateDown, false
	}
	if now.Before(r.next) {
		return nil
	}
	interval := max(r.desired(), r.theirs)
	r.next = now.Add(interval*3/4 + time.Duration(random.Int64N(int64(interval/4))))
	return r.packet(false)
}

// A session with a router over a link that loses and delays packets, is cut and comes back, while
// the router restarts and others forge packets: it is never Up with a router that does not hear it,
// gives a silent one up in time, and is Up soon after all is well.
func TestRandom(t *testing.T) {
	const rounds, tick = 100, ms
	for seed := range uint64(rounds) {
		random := rand.New(rand.NewPCG(seed, 0))
		between := func(low, high int) int { return low + random.IntN(high-low+1) }
		config := Config{Interval: time.Duration(between(50, 1500)) * ms, Multiplier: uint8(between(2, 5))}
		m := New(config, own, random.Float64, start)
		newModel := func(now time.Time) *model {
			return &model{discriminator: random.Uint32() | 1, state: bfd.StateDown, transmits: time.Duration(between(50, 1500)) * ms, receives: time.Duration(between(50, 1500)) * ms, multiplier: uint8(between(2, 5)), next: now, theirs: 1}
		}
		router := newModel(start)
		type flight struct {
			at       time.Time
			to       bool // the router
			datagram []byte
		}
		var (
			flying        []flight
			loss          float64
			cut           bool
			changes, well time.Time // the next change of the link, and since when there is none
			heard         time.Time // by the session, what counts
			periodic      time.Time
			lossesBefore  int
		)
		send := func(now time.Time, to bool, datagram []byte) {
			if datagram != nil && !cut && random.Float64() >= loss {
				flying = append(flying, flight{now.Add(time.Duration(between(0, 20)) * ms), to, datagram})
			}
		}
		changes = start
		for now := start; now.Before(start.Add(2 * time.Minute)); now = now.Add(tick) {
			if !now.Before(changes) {
				changes, well = now.Add(time.Duration(between(1, 30_000))*ms), now
				loss, cut = []float64{0, 0, 0.3, 0.8}[random.IntN(4)], random.IntN(3) == 0
				if random.IntN(4) == 0 {
					router = newModel(now)
				}
			}
			before, interval := m.State(), m.interval
			if random.IntN(50) == 0 { // a forger
				forged := make([]byte, 24)
				for i := range forged {
					forged[i] = byte(random.Uint32())
				}
				if random.IntN(2) == 0 {
					forged = from(bfd.StateType(random.IntN(4)), func(p *bfd.BFDHeader) { p.YourDiscriminator = random.Uint32() | 1<<31 })
				}
				was := snapshot(m)
				if _, err := m.Receive(now, forged, 255); err == nil || snapshot(m) != was {
					t.Fatalf("seed %d: %x was taken", seed, forged)
				}
			}
			var rest []flight
			for _, f := range flying {
				switch {
				case now.Before(f.at):
					rest = append(rest, f)
				case f.to:
					for _, reply := range router.hear(now, f.datagram) {
						send(now, false, reply)
					}
				default:
					reply, err := m.Receive(now, f.datagram, 255)
					if err == nil {
						heard = now
					}
					send(now, true, reply)
				}
			}
			flying = rest
			if packet := m.Advance(now); packet != nil {
				gap := now.Sub(periodic)
				if m.State().StateType == before.StateType && !periodic.IsZero() && gap < min(interval, m.interval)*3/4-2*tick {
					t.Fatalf("seed %d: a packet after %v", seed, gap)
				}
				periodic = now
				send(now, true, packet)
			}
			send(now, false, router.advance(now, random))
			s := m.State()
			switch {
			case s.StateType == bfd.StateUp && m.peer.state != bfd.StateInit && m.peer.state != bfd.StateUp:
				t.Fatalf("seed %d: Up with a router that is %s", seed, m.peer.state)
			case s.StateType == bfd.StateUp && now.Sub(heard) > time.Duration(m.peer.multiplier)*max(config.Interval, m.peer.transmits)+tick:
				t.Fatalf("seed %d: Up after a silence of %v", seed, now.Sub(heard))
			case s.Losses != lossesBefore && (before.StateType != bfd.StateUp || s.Losses != lossesBefore+1):
				t.Fatalf("seed %d: lost %d times, was %s", seed, s.Losses, before.StateType)
			case before.StateType == bfd.StateUp && s.StateType != bfd.StateUp && s.Losses == lossesBefore:
				t.Fatalf("seed %d: not Up any more, and no loss", seed)
			case loss == 0 && !cut && now.Sub(well) > 15*time.Second && (s.StateType != bfd.StateUp || router.state != bfd.StateUp):
				t.Fatalf("seed %d: all is well for %v, and the session is %s, the router %s", seed, now.Sub(well), s.StateType, router.state)
			}
			lossesBefore = s.Losses
		}
	}
}

// No datagram breaks a session, and one that is refused changes nothing.
func FuzzReceive(f *testing.F) {
	for _, test := range refused() {
		f.Add(test.datagram, test.hops, byte(0))
	}
	for state := range bfd.StateUp + 1 {
		f.Add(from(state, nil), 255, byte(state))
	}
	f.Fuzz(func(t *testing.T, datagram []byte, hops int, before byte) {
		m := New(usual(), own, middle, start)
		m.Advance(start)
		if before%4 != 0 {
			if _, err := m.Receive(start, from(bfd.StateType(before%4), nil), 255); err != nil {
				t.Fatal(err)
			}
		}
		was := snapshot(m)
		reply, err := m.Receive(start.Add(ms), datagram, hops)
		if err != nil && (snapshot(m) != was || reply != nil) {
			t.Errorf("%v, and is %s after %s", err, snapshot(m), was)
		}
		if err == nil && (hops != 255 || len(datagram) < 24) {
			t.Errorf("took %x with %d", datagram, hops)
		}
		for now, n := start.Add(ms), 0; n < 20; n++ {
			text(t, m.Advance(now))
			if !m.Next().After(now) {
				t.Fatal("something is due again and again")
			}
			now = m.Next()
		}
	})
}
