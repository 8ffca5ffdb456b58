// SPDX-License-Identifier: Apache-2.0

// Package lifesign looks for signs of life of another node at its InternalIPs: of its kernel, and
// of its agent. It owns the definition of a sign. It decides nothing, and changes nothing there.
package lifesign

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
)

const (
	// kubeletPort is where a kubelet serves; a refused connection is a sign, too.
	kubeletPort = 10250
	// There are tries attempts, tryInterval apart, because packets get lost. The last attempt has
	// patience.
	tries       = 3
	tryInterval = 300 * time.Millisecond
	patience    = 1200 * time.Millisecond
)

// Signs are the signs of life that were found.
type Signs struct {
	// Kernel: the node answered a ping, or accepted or refused a connection at the kubelet's port.
	Kernel bool
	// Agent: the agent responded to a request by HTTPS. A stopped or hanging process does not respond,
	// although its kernel accepts the connection.
	Agent bool
}

// Look looks for signs at all addresses of a node, whose agent serves at a port. It takes about a
// second, and less where all are found.
func Look(ctx context.Context, hosts []netip.Addr, agentPort int) Signs {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var group sync.WaitGroup
	var kernel, agent atomic.Bool
	for _, host := range hosts {
		group.Go(func() { again(ctx, &kernel, func() bool { return connects(ctx, host) }) })
		group.Go(func() { again(ctx, &kernel, func() bool { return echoes(ctx, host) }) })
		group.Go(func() { again(ctx, &agent, func() bool { return serves(ctx, host, agentPort) }) })
	}
	group.Wait()
	return Signs{Kernel: kernel.Load() || agent.Load(), Agent: agent.Load()}
}

// again tries until there is a sign; a new try does not end the earlier tries.
func again(ctx context.Context, found *atomic.Bool, try func() bool) {
	var group sync.WaitGroup
	defer group.Wait()
	answered := make(chan struct{}, tries)
	for range tries {
		group.Go(func() {
			if try() {
				found.Store(true)
				answered <- struct{}{}
			}
		})
		select {
		case <-ctx.Done():
			return
		case <-answered:
			return
		case <-time.After(tryInterval):
		}
	}
}

// connects reports whether the host's kernel responds at the kubelet's port.
func connects(ctx context.Context, host netip.Addr) bool {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", netip.AddrPortFrom(host, kubeletPort).String())
	if err == nil {
		_ = conn.Close()
	}
	return err == nil || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ECONNRESET)
}

// serves reports whether there is any response by HTTPS. The sender does not matter: a response
// only keeps a node from being taken for lost, and proves nothing else.
func serves(ctx context.Context, host netip.Addr, port int) bool {
	client := http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, //nolint:gosec // see above
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+net.JoinHostPort(host.String(), strconv.Itoa(port))+"/healthz", nil)
	if err != nil {
		return false
	}
	response, err := client.Do(request)
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	return true
}

// number distinguishes the echo requests of this process.
var number atomic.Uint32

// echoes reports whether the host answers a ping.
func echoes(ctx context.Context, host netip.Addr) bool {
	network, own, request, reply, protocol := "ip4:icmp", "0.0.0.0", icmp.Type(ipv4.ICMPTypeEcho), icmp.Type(ipv4.ICMPTypeEchoReply), unix.IPPROTO_ICMP
	if host.Is6() {
		network, own, request, reply, protocol = "ip6:ipv6-icmp", "::", ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply, unix.IPPROTO_ICMPV6
	}
	conn, err := icmp.ListenPacket(network, own)
	if err != nil {
		return false
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })()
	echo := icmp.Echo{ID: os.Getpid() & 0xffff, Seq: int(number.Add(1) & 0xffff), Data: fmt.Appendf(nil, "berth %x", time.Now().UnixNano())}
	packet, err := (&icmp.Message{Type: request, Body: &echo}).Marshal(nil)
	if err != nil {
		return false
	}
	if _, err := conn.WriteTo(packet, &net.IPAddr{IP: host.AsSlice()}); err != nil {
		return false
	}
	buffer := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFrom(buffer)
		if err != nil {
			return false
		}
		at, ok := from.(*net.IPAddr)
		if !ok || !at.IP.Equal(host.AsSlice()) {
			continue
		}
		message, err := icmp.ParseMessage(protocol, buffer[:n])
		if err != nil || message.Type != reply {
			continue
		}
		if answer, ok := message.Body.(*icmp.Echo); ok && answer.ID == echo.ID && answer.Seq == echo.Seq && string(answer.Data) == string(echo.Data) {
			return true
		}
	}
}
