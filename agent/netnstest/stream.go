// SPDX-License-Identifier: Apache-2.0

package netnstest

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Stream is a TCP connection from one host to another.
type Stream struct {
	t        testing.TB
	from, to net.Conn
}

// congestionControl is the sender's algorithm on every stream. Hosts differ in their
// default, and BBR keeps the rate that it found under a limit for many round trips after the
// limit has changed, as long as it takes the limit for a policer's. Every kernel has Reno.
const congestionControl = "reno"

// Dial connects a host to an address of another host, on a free port. The address may become usable
// only a moment later. The stream ends with the test.
func Dial(t testing.TB, from, to *Host, address string) *Stream {
	t.Helper()
	s := &Stream{t: t}
	var listener net.Listener
	Eventually(t, func() error {
		return to.Try(func() (err error) {
			listener, err = new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(address, "0"))
			return err
		})
	})
	defer listener.Close()
	dialer := net.Dialer{Timeout: 10 * time.Second, Control: func(_, _ string, c syscall.RawConn) error {
		var set error
		err := c.Control(func(fd uintptr) {
			set = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, congestionControl)
		})
		return errors.Join(err, set)
	}}
	Eventually(t, func() error {
		return from.Try(func() (err error) {
			s.from, err = dialer.DialContext(t.Context(), "tcp", listener.Addr().String())
			return err
		})
	})
	var err error
	if s.to, err = listener.Accept(); err != nil {
		t.Fatalf("accept a connection to %s: %v", address, err)
	}
	t.Cleanup(func() { s.from.Close(); s.to.Close() })
	return s
}

// Rate sends bytes and returns their rate in bits per second, measured from the first to the last
// arriving byte.
func (s *Stream) Rate(bytes int64) float64 {
	s.t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	if err := errors.Join(s.from.SetDeadline(deadline), s.to.SetDeadline(deadline)); err != nil {
		s.t.Fatal(err)
	}
	sent := make(chan error, 1)
	go func() { _, err := io.CopyN(s.from, zeros{}, bytes); sent <- err }()
	first, err := s.to.Read(make([]byte, 1<<10))
	if err != nil {
		s.t.Errorf("receive the first of %d bytes: %v", bytes, err)
	}
	start := time.Now()
	rest, err := io.CopyN(io.Discard, s.to, bytes-int64(first))
	took := time.Since(start)
	if err := errors.Join(err, <-sent); err != nil {
		s.t.Errorf("send %d bytes: %v", bytes, err)
	}
	return float64(rest) * 8 / took.Seconds()
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}
