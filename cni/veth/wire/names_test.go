// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"testing"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// The plugin imports nothing of ipam, and its limit follows from the layout of the
// routing tables; yet what the scheduler gives it must be able to wire.
func TestMaxAddresses(t *testing.T) {
	if MaxAddresses != v1alpha1.MaxAddresses {
		t.Errorf("%d can be wired to one interface, and a pod can have %d", MaxAddresses, v1alpha1.MaxAddresses)
	}
}
