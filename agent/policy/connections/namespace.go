// SPDX-License-Identifier: Apache-2.0

package connections

import (
	"errors"
	"io/fs"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/berth-dev/berth/cni/rtnl"
)

// Namespace is the path of a network namespace; empty is the namespace of the calling process.
// Methods block for the kernel and may be called in parallel.
type Namespace string

// Do calls f on a thread in the namespace.
func (n Namespace) Do(f func() error) error {
	if n == "" {
		return f()
	}
	return rtnl.InNetNS(string(n), f)
}

// IsGone reports whether an error says that the namespace no longer exists at its path.
func IsGone(err error) bool {
	var missing ns.NSPathNotExistErr
	return errors.Is(err, fs.ErrNotExist) || errors.As(err, &missing)
}
