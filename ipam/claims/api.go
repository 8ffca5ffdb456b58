// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
)

// api reads and writes claims at the API server. Blocking, safe for concurrent use.
type api interface {
	// get fails with a NotFound error if there is no such claim.
	get(ctx context.Context, namespace, name string) (*v1alpha1.IPClaim, error)
	// writeStatus fails with a NotFound or Conflict error if the claim is gone.
	writeStatus(ctx context.Context, claim *v1alpha1.IPClaim, status *v1alpha1.IPClaimStatus) (*v1alpha1.IPClaim, error)
}

// apiServer implements api.
type apiServer struct{ client *client.Client }

func (s apiServer) get(ctx context.Context, namespace, name string) (*v1alpha1.IPClaim, error) {
	return s.client.IPClaims(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (s apiServer) writeStatus(ctx context.Context, claim *v1alpha1.IPClaim, status *v1alpha1.IPClaimStatus) (*v1alpha1.IPClaim, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": claim.UID}, "status": status})
	if err != nil {
		return nil, fmt.Errorf("encode the status: %w", err)
	}
	return s.client.IPClaims(claim.Namespace).Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
}

// versionOf returns an object's resource version; versions are comparable integers
// (KEP-5504).
func versionOf(claim *v1alpha1.IPClaim) uint64 {
	version, err := strconv.ParseUint(claim.ResourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return version
}
