// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"testing"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// The plugin can wire all addresses that the scheduler gives a pod. It imports nothing
// of ipam, and its limit follows from the layout of the routing tables.
func TestMaxAddresses(t *testing.T) {
	if MaxAddresses != v1alpha1.MaxAddresses {
		t.Errorf("%d can be wired to one interface, and a pod can have %d", MaxAddresses, v1alpha1.MaxAddresses)
	}
}
