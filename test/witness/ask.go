// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/test/lab"
)

// Port is where the pods of tests serve HTTP.
const Port = "8080"

// Get sends one request from a host and returns the answer. It opens a new
// connection each time.
func Get(ctx context.Context, from *lab.Host, url string) (string, error) {
	return get(ctx, from.Dial, url)
}

type dial func(ctx context.Context, network, address string) (net.Conn, error)

func get(ctx context.Context, by dial, url string) (string, error) {
	client := http.Client{Transport: &http.Transport{DialContext: by, DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 4096))
	return string(body), err
}

// Ask asks a pod from the client host who it is: its name, or its UID where it
// was made so that it says that. It gives up after a second, so that an error
// says nothing on a busy machine.
func (w *Witness) Ask(ctx context.Context, address string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return Get(ctx, w.Cluster.Client(), whoAreYou(address))
}

func whoAreYou(address string) string {
	return "http://" + net.JoinHostPort(address, Port) + "/hostname"
}

// AskWithoutLoss asks a pod that should be reached all the time, from the client host. However
// busy the machine is, an error says that the pod was not: the answer may take its time, but
// the first packet must not be lost.
func (w *Witness) AskWithoutLoss(ctx context.Context, address string) (string, error) {
	return AskWithoutLoss(ctx, w.Cluster.Client(), address)
}

// AskWithoutLoss is [Witness.AskWithoutLoss] from any host.
func AskWithoutLoss(ctx context.Context, from *lab.Host, address string) (string, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	return get(ctx, func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := from.Dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if err := withoutLoss(conn); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		return conn, nil
	}, whoAreYou(address))
}

// withoutLoss checks a new TCP connection. The kernel repeats the first packet
// after a second; it answers one by itself, whether or not the program has time.
func withoutLoss(conn net.Conn) error {
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return fmt.Errorf("look at the connection to %s: %w", conn.RemoteAddr(), err)
	}
	var info *unix.TCPInfo
	var failed error
	if err := raw.Control(func(fd uintptr) {
		info, failed = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	}); err != nil || failed != nil {
		return fmt.Errorf("look at the connection to %s: %w", conn.RemoteAddr(), errors.Join(err, failed))
	}
	if info.Total_retrans > 0 {
		return fmt.Errorf("the first packet to %s was lost %d times", conn.RemoteAddr(), info.Total_retrans)
	}
	return nil
}

// AskUntil asks until the wanted answer comes.
func (w *Witness) AskUntil(ctx context.Context, address, want string) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		got, err := w.Ask(ctx, address)
		if err == nil && got == want {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("%q answered", got)
		}
		if !errors.Is(err, context.DeadlineExceeded) || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the client host asked %s and %s did not answer: %w", address, want, last)
		case <-tick.C:
		}
	}
}

// Neighbour returns the client host's ARP or ND entry for an address.
func (w *Witness) Neighbour(ctx context.Context, address string) (string, error) {
	output, err := w.Cluster.Client().Exec(ctx, "ip", "neigh", "show", address)
	if err != nil {
		return "", err
	}
	for fields := strings.Fields(string(output)); len(fields) > 1; fields = fields[1:] {
		if fields[0] == "lladdr" {
			return fields[1], nil
		}
	}
	return "", fmt.Errorf("the client host has no neighbour %s: %q", address, output)
}
