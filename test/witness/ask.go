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

	"github.com/berth-dev/berth/test/lab"
)

// Port is where the pods of tests serve HTTP.
const Port = "8080"

// Get sends one request from a host and returns the answer. It opens a new
// connection each time.
func Get(ctx context.Context, from *lab.Host, url string) (string, error) {
	client := http.Client{Transport: &http.Transport{DialContext: from.Dial, DisableKeepAlives: true}}
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
// was made so that it says that. It gives up after a second.
func (w *Witness) Ask(ctx context.Context, address string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return Get(ctx, w.Cluster.Client(), "http://"+net.JoinHostPort(address, Port)+"/hostname")
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
