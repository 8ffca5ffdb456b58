// SPDX-License-Identifier: Apache-2.0

package conflict

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/frame"
)

// Listener hears hosts that say that they have an address of this node, in any ARP packet
// with the address as its sender, or in a neighbour advertisement with the flag "override".
// It has a socket and a goroutine for each link and family. The kernel drops all other
// frames, so a busy network costs nothing.
//
// A claim proves nothing: where an address moves, its new node claims it.
//
// A Listener also answers hosts that probe for such an address, such as DHCP clients, where the
// node answers for it by proxy: the kernel answers no probes by proxy.
//
// Listen and Close are for one goroutine; another one may read Claims.
type Listener struct {
	claims chan Conflict
	ears   map[segmentKey]*ear
	// answers returns whether the node answers for an address on a link by proxy.
	answers func(link int, addr netip.Addr) (bool, error)
}

// waitingClaims is how many claims may wait to be read. More are lost: hosts repeat theirs.
const waitingClaims = 64

// NewListener returns a Listener that hears nothing yet. answers returns whether the node answers for
// an IPv4 address on a link by proxy at this moment; an error means no.
func NewListener(answers func(link int, addr netip.Addr) (bool, error)) *Listener {
	return &Listener{claims: make(chan Conflict, waitingClaims), ears: map[segmentKey]*ear{}, answers: answers}
}

// Claims returns the claims heard. A host that repeats itself is heard again.
func (l *Listener) Claims() <-chan Conflict { return l.claims }

// Listen hears claims of exactly these targets from now on. It blocks for the kernel only. Beside
// an error it hears the targets whose link it could open; a link that is no Ethernet has no claims.
func (l *Listener) Listen(targets []Target) error {
	groups := group(targets)
	var errs []error
	for k, e := range l.ears {
		if groups[k] == nil || e.broken.Load() {
			errs = append(errs, e.conn.Close())
			delete(l.ears, k)
		}
	}
	return errors.Join(append(errs, onEthernet(groups, "hear claims", l.listen))...)
}

// Close ends the Listener's sockets.
func (l *Listener) Close() error { return l.Listen(nil) }

func (l *Listener) listen(k segmentKey, link *net.Interface, targets []Target) error {
	filter, err := bpf.Assemble(append(frame.ToThisHost(), claimsOf(k.is4, targets)...))
	if err != nil {
		return err
	}
	if e := l.ears[k]; e != nil {
		e.hears.Store(&hearing{link, targets})
		return e.conn.SetBPF(filter)
	}
	protocol := unix.ETH_P_IPV6
	if k.is4 {
		protocol = unix.ETH_P_ARP
	}
	conn, err := packet.Listen(link, packet.Raw, protocol, &packet.Config{Filter: filter})
	if err != nil {
		return err
	}
	e := &ear{is4: k.is4, conn: conn, answers: l.answers}
	e.hears.Store(&hearing{link, targets})
	l.ears[k] = e
	go e.run(l.claims)
	return nil
}

// ear hears one family on one link.
type ear struct {
	is4     bool
	conn    *packet.Conn
	hears   atomic.Pointer[hearing]
	broken  atomic.Bool
	answers func(link int, addr netip.Addr) (bool, error)
}

// hearing has an ear's targets, and their link as it was at the last Listen.
type hearing struct {
	link    *net.Interface
	targets []Target
}

// run reads until the socket is closed.
func (e *ear) run(claims chan<- Conflict) {
	buffer := make([]byte, 2048)
	for {
		n, _, err := e.conn.ReadFrom(buffer)
		if errors.Is(err, unix.ENETDOWN) {
			// The link went down, and may come up again.
			continue
		}
		if err != nil {
			e.broken.Store(true)
			return
		}
		e.answer(buffer[:n])
		if claim, ok := e.claim(buffer[:n]); ok {
			select {
			case claims <- claim:
			default:
			}
		}
	}
}

func (e *ear) claim(f []byte) (Conflict, bool) {
	var c Conflict
	var ok bool
	if e.is4 {
		var a frame.ARP
		a, _, ok = frame.ParseARP(f)
		c.Address, c.MAC = a.Sender, a.SenderMAC
	} else {
		var a frame.Advertisement
		a, ok = frame.ParseAdvertisement(f)
		ok = ok && a.Flags&frame.FlagOverride != 0
		c.Address, c.MAC = a.Target, a.MAC
	}
	h := e.hears.Load()
	c.Link = h.link.Name
	i := slices.IndexFunc(h.targets, func(t Target) bool { return t.Address == c.Address })
	return c, ok && i >= 0 && !bytes.Equal(c.MAC, h.targets[i].Own) && !bytes.Equal(c.MAC, h.link.HardwareAddr)
}

// Offsets in frames: of an ARP packet's sender and target, and of the end of the target of a
// neighbour advertisement.
const (
	arpSender = 14 + 14
	arpTarget = 14 + 24
	targetEnd = 14 + 40 + 20
)

// maxAddresses limits the filter's length. The kernel has 20 KiB for a socket's options and
// its filter, which takes 16 bytes for an address.
const maxAddresses = 512

// claimsOf passes frames that may claim one of the targets, and probes for one.
func claimsOf(is4 bool, targets []Target) []bpf.Instruction {
	var program []bpf.Instruction
	offset := uint32(arpSender)
	if !is4 {
		program = isAdvertisement()
		offset = targetEnd
	}
	pass := bpf.RetConstant{Val: 1 << 16}
	if len(targets) > maxAddresses {
		return append(program, pass)
	}
	program = append(program, bpf.LoadAbsolute{Off: offset, Size: 4})
	if is4 {
		// A probe has no sender.
		program = append(program, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: 1}, bpf.LoadAbsolute{Off: arpTarget, Size: 4})
	}
	for _, t := range targets {
		// The last four bytes of an IPv6 address tell enough.
		bytes := t.Address.AsSlice()
		last := bytes[len(bytes)-4:]
		value := uint32(last[0])<<24 | uint32(last[1])<<16 | uint32(last[2])<<8 | uint32(last[3])
		program = append(program, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: value, SkipTrue: 1}, pass)
	}
	return append(program, bpf.RetConstant{Val: 0})
}

// isAdvertisement ends a filter's program for all IPv6 packets but neighbour advertisements.
func isAdvertisement() []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: 14 + 6, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.IPPROTO_ICMPV6, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.LoadAbsolute{Off: 14 + 40, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: frame.NeighborAdvertisement, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
	}
}
