// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/test/witness"
)

// steady is a TCP connection from the client host to a pod that is used without a break, for
// one request after another.
type steady struct {
	s      *stage
	pod    *v1.Pod
	cancel context.CancelFunc
	done   sync.WaitGroup
	bytes  atomic.Int64
	// answers and err are read after done.
	answers int
	err     error
	conn    *net.TCPConn
}

// steadily gets a path of the pod again and again by one connection, with pauses, or without
// where pause is 0. Its end is expectSteady.
func (s *stage) steadily(pod *v1.Pod, path string, pause time.Duration) *steady {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.ctx)
	c := &steady{s: s, pod: pod, cancel: cancel}
	s.t.Cleanup(c.stop)
	host := net.JoinHostPort(pod.Status.PodIP, witness.Port)
	conn, err := s.Cluster.Client().Dial(ctx, "tcp", host)
	s.must(err)
	c.conn = conn.(*net.TCPConn)
	// No http.Transport: it gives up a connection whose request was not known to be written 50 ms
	// after the answer began.
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+path, nil)
	s.must(err)
	reader := bufio.NewReader(conn)
	// The first answer is there before what the connection must outlive begins.
	s.must(c.get(request, reader))
	ended := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	c.done.Go(func() {
		defer conn.Close()
		defer ended()
		for ctx.Err() == nil && c.err == nil {
			if err := c.get(request, reader); err != nil && ctx.Err() == nil {
				c.err = err
			}
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	})
	return c
}

// get sends one request. The client's kernel may repeat a packet of it once: that a packet
// is late on a busy machine looks the same. A packet that it repeats again was lost twice.
func (c *steady) get(request *http.Request, reader *bufio.Reader) error {
	before := c.repeated()
	if err := request.Write(c.conn); err != nil {
		return err
	}
	response, err := http.ReadResponse(reader, request)
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("get %s: %s", request.URL, response.Status)
	}
	if _, err := io.Copy(counter{&c.bytes}, response.Body); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	c.answers++
	if n := c.repeated() - before; n > 1 {
		return fmt.Errorf("the client's kernel sent %d packets of request %d again", n, c.answers)
	}
	return nil
}

// repeated is how many packets the client's kernel has sent again.
func (c *steady) repeated() int {
	raw, err := c.conn.SyscallConn()
	if err != nil {
		return 0
	}
	var info *unix.TCPInfo
	var failed error
	if err := raw.Control(func(fd uintptr) { info, failed = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }); err != nil || failed != nil {
		return 0 // it is closed, which the request has told
	}
	return int(info.Total_retrans)
}

type counter struct{ n *atomic.Int64 }

func (c counter) Write(b []byte) (int, error) {
	c.n.Add(int64(len(b)))
	return len(b), nil
}

func (c *steady) stop() {
	c.cancel()
	c.done.Wait()
}

// moves waits until more bytes have come since now.
func (c *steady) moves() {
	c.s.t.Helper()
	before := c.bytes.Load()
	c.s.eventually("bytes come from "+c.pod.Name, func() error {
		if c.bytes.Load() == before {
			return errors.New("none came")
		}
		return nil
	})
}

// expectSteady ends the use and fails the test where the connection did not last.
func (s *stage) expectSteady(during string, all ...*steady) {
	s.t.Helper()
	for _, c := range all {
		c.stop()
		if c.err != nil {
			s.t.Errorf("the connection to %s, during %s: after %d answers: %v", c.pod.Name, during, c.answers, c.err)
		}
		s.t.Logf("%s: one connection to %s had %d answers with %d MB", during, c.pod.Name, c.answers, c.bytes.Load()>>20)
	}
}
