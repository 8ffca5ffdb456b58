// SPDX-License-Identifier: Apache-2.0

package program

import (
	"context"
	"fmt"
	"net"
)

// FreeAddress returns one of this host that nobody listens on.
func FreeAddress() (string, error) {
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free address: %w", err)
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}

// ServeAt are the flags of a program that is asked at an address.
func ServeAt(address string) []string {
	host, port, _ := net.SplitHostPort(address)
	return []string{"--bind-address=" + host, "--secure-port=" + port}
}
