// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// The kernel drops the first packet of a connection for which a listener has no
// room. The connection comes about nevertheless, and counts as lost.
func TestWithoutLoss(t *testing.T) {
	listener, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(listener) })
	if err := unix.Bind(listener, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(listener, 0); err != nil { // room for one
		t.Fatal(err)
	}
	address, err := unix.Getsockname(listener)
	if err != nil {
		t.Fatal(err)
	}

	first := connection(t, address)
	if err := withoutLoss(first); err != nil {
		t.Errorf("nothing was lost: %v", err)
	}
	second := connection(t, address)
	accepted, _, err := unix.Accept(listener)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(accepted) })
	await(t, second)
	if err := withoutLoss(second); err == nil {
		t.Error("the first packet was dropped, and nobody noticed")
	}
}

// connection begins a connection, and does not wait for an answer.
func connection(t *testing.T, to unix.Sockaddr) *net.TCPConn {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "connection")
	defer file.Close()
	if err := unix.Connect(fd, to); err != nil && err != unix.EINPROGRESS {
		t.Fatal(err)
	}
	conn, err := net.FileConn(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn.(*net.TCPConn)
}

// await waits until the connection has come about.
func await(t *testing.T, conn *net.TCPConn) {
	t.Helper()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Write(func(fd uintptr) bool {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		return err != nil || info.State != unix.BPF_TCP_SYN_SENT
	})
	if err != nil {
		t.Fatal(err)
	}
}
