// SPDX-License-Identifier: Apache-2.0

package attachdef

import (
	"encoding/json"
	"fmt"

	"github.com/containernetworking/cni/pkg/types/create"
	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	nadutils "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/utils"
)

// StatusAnnotation is the annotation of a pod that says what its networks gave it.
const StatusAnnotation = nadv1.NetworkStatusAnnot

// Attached is a network of a pod with the CNI result of its ADD.
type Attached struct {
	// Network is namespace/name of the NetworkAttachmentDefinition, or the name of a
	// network of the node's.
	Network string
	Result  json.RawMessage
}

// Status returns the value of StatusAnnotation. The first network is the pod's default
// network.
func Status(networks []Attached) (string, error) {
	all := []*nadv1.NetworkStatus{}
	for i, n := range networks {
		result, err := create.CreateFromBytes(n.Result)
		if err != nil {
			return "", fmt.Errorf("read the result of network %s: %w", n.Network, err)
		}
		status, err := nadutils.CreateNetworkStatuses(result, n.Network, i == 0, nil)
		if err != nil {
			return "", fmt.Errorf("read the result of network %s: %w", n.Network, err)
		}
		if len(status) == 0 {
			// Plugins need not list interfaces.
			one, err := nadutils.CreateNetworkStatus(result, n.Network, i == 0, nil)
			if err != nil {
				return "", fmt.Errorf("read the result of network %s: %w", n.Network, err)
			}
			status = append(status, one)
		}
		all = append(all, status...)
	}
	value, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return "", fmt.Errorf("encode the networks' status: %w", err)
	}
	return string(value), nil
}
