// SPDX-License-Identifier: Apache-2.0

package connections

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/containernetworking/plugins/pkg/ns"
)

// Namespace is the path of a network namespace; empty is the namespace of the calling process.
// Methods block for the kernel and may be called in parallel.
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

// IsGone reports whether an error says that the namespace no longer exists at its path.
func IsGone(err error) bool {
	var missing ns.NSPathNotExistErr
	return errors.Is(err, fs.ErrNotExist) || errors.As(err, &missing)
}
