// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// The messages of k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1/api.proto that the plugin writes and
// reads.

// encodeDevices returns a ListAndWatchResponse.
func encodeDevices(devices []Device) []byte {
	var all []byte
	for _, d := range devices {
		health := "Unhealthy"
		if d.Healthy {
			health = "Healthy"
		}
		one := appendField(appendField(nil, 1, []byte(d.ID)), 2, []byte(health))
		if d.NUMANode >= 0 {
			node := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(d.NUMANode))
			one = appendField(one, 3, appendField(nil, 1, node))
		}
		all = appendField(all, 1, one)
	}
	return all
}

// encodeRegistration returns a RegisterRequest for a socket beside the kubelet's.
func encodeRegistration(endpoint, resource string) []byte {
	return appendField(appendField(appendField(nil, 1, []byte(version)), 2, []byte(endpoint)), 3, []byte(resource))
}

// encodeAllocation returns the AllocateResponse to an AllocateRequest: nothing for each container,
// which gets its function by CNI.
func encodeAllocation(request []byte) ([]byte, error) {
	var all []byte
	for len(request) > 0 {
		number, _, n := protowire.ConsumeField(request)
		if n < 0 {
			return nil, fmt.Errorf("read an AllocateRequest: %w", protowire.ParseError(n))
		}
		if number == 1 {
			all = appendField(all, 1, nil)
		}
		request = request[n:]
	}
	return all, nil
}

func appendField(to []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, number, protowire.BytesType), value)
}
