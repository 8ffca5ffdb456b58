// SPDX-License-Identifier: Apache-2.0

// Command forward joins this machine's 127.0.0.1 to one address in another
// network namespace, so that no link, address or route is needed for it. It
// takes connections from the listening socket that it inherits as descriptor
// 3, and runs until it is killed.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

func main() {
	netns := flag.String("netns", "", "path of the network namespace to connect from")
	to := flag.String("to", "", "address to connect to, IP:PORT")
	flag.Parse()
	if err := run(*netns, *to); err != nil {
		fmt.Fprintln(os.Stderr, "forward:", err)
		os.Exit(1)
	}
}

func run(netns, to string) error {
	file := os.NewFile(3, "listener")
	listener, err := net.FileListener(file)
	if err != nil {
		return fmt.Errorf("use descriptor 3: %w", err)
	}
	ns, err := os.Open(netns)
	if err != nil {
		return fmt.Errorf("open namespace: %w", err)
	}
	// This goroutine's thread enters for good; the sockets that it makes
	// stay in the namespace, whichever thread copies from them.
	runtime.LockOSThread()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter namespace: %w", err)
	}
	for {
		from, err := listener.Accept()
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		conn, err := new(net.Dialer).DialContext(context.Background(), "tcp", to)
		if err != nil {
			from.Close() // the caller sees what a dead server looks like
			continue
		}
		go pipe(from, conn)
		go pipe(conn, from)
	}
}

// pipe copies until one side ends and tells the other side so.
func pipe(to, from net.Conn) {
	if _, err := io.Copy(to, from); err != nil {
		from.Close()
		to.Close()
		return
	}
	if tcp, ok := to.(*net.TCPConn); ok {
		_ = tcp.CloseWrite() // an error: it is closed already
	}
}
