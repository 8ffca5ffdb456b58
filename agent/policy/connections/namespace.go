// SPDX-License-Identifier: Apache-2.0

package connections

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/agent/policy/socket"
)

// Namespace is the path of a network namespace. An empty path stands for the network namespace of the calling
// process. Methods block for the kernel and may be called in parallel.
type Namespace string

// Do calls f on a thread in the namespace.
func (n Namespace) Do(f func() error) error {
	if n == "" {
		return f()
	}
	netns, err := ns.GetNS(string(n))
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", n, err)
	}
	defer netns.Close()
	return netns.Do(func(ns.NetNS) error { return f() })
}

// IsGone returns whether an error says that no namespace is at its path any more.
func IsGone(err error) bool {
	var missing ns.NSPathNotExistErr
	return errors.Is(err, fs.ErrNotExist) || errors.As(err, &missing)
}

// EndConnections is End in the namespace.
func (n Namespace) EndConnections(ctx context.Context, rs *ruleset.Ruleset, addresses map[netip.Addr]string) (ended, all int, err error) {
	err = n.Do(func() (err error) {
		ended, all, err = End(ctx, rs, addresses)
		return err
	})
	return ended, all, err
}

// Adopt is Adopt in the namespace.
func (n Namespace) Adopt(_ context.Context, all []socket.Connection, replace bool) error {
	if len(all) == 0 {
		return nil
	}
	return n.Do(func() error { return Adopt(all, replace) })
}
