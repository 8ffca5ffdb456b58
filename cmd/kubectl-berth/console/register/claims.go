// SPDX-License-Identifier: Apache-2.0

package register

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/pool/poolmap"
	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Claim is an IPClaim. Its counts are its FloatingIPs at this moment.
type Claim struct {
	Namespace string               `json:"namespace"`
	Name      string               `json:"name"`
	Spec      v1alpha1.IPClaimSpec `json:"spec"`
	poolmap.Counts
	// Ready, Reason and Message are of its condition Ready; empty: nobody has looked at it yet.
	Ready   string `json:"ready,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Oversized: it has more addresses than its size. Message says why, if it is ready.
	Oversized bool `json:"oversized,omitempty"`
	// Addresses are the first of them, and More says that there are more.
	Addresses []standing.Address `json:"addresses"`
	More      bool               `json:"more,omitempty"`
	// UID and ResourceVersion of the object. Its status changes the resourceVersion, too.
	UID             string `json:"uid"`
	ResourceVersion string `json:"resourceVersion"`
}

// Waits says whether the claim lacks addresses that it asks for.
func (c *Claim) Waits() bool { return c.Ready == string(metav1.ConditionFalse) }

// Claims returns the IPClaims of a scope in order, each with at most so many addresses.
func (r *Register) Claims(scope Scope, most int) []Claim {
	r.mu.RLock()
	objects := r.Objects.Claims.seen(scope)
	r.mu.RUnlock()
	all := make([]Claim, 0, len(objects))
	for _, object := range objects {
		all = append(all, r.claimOf(object, most))
	}
	return all
}

var ErrNoClaim = errors.New("there is no IPClaim of this name that you may see")

// Claim returns an IPClaim with no more than most addresses. An error is ErrNoClaim.
func (r *Register) Claim(scope Scope, namespace, name string, most int) (Claim, error) {
	r.mu.RLock()
	object := r.Objects.Claims.all[key{namespace, name}]
	r.mu.RUnlock()
	if object == nil || !scope.Sees(namespace) {
		return Claim{}, fmt.Errorf("IPClaim %s/%s: %w", namespace, name, ErrNoClaim)
	}
	return r.claimOf(object, most), nil
}

func (r *Register) claimOf(object *v1alpha1.IPClaim, most int) Claim {
	c := Claim{Namespace: object.Namespace, Name: object.Name, Spec: object.Spec, Addresses: []standing.Address{}, UID: string(object.UID), ResourceVersion: object.ResourceVersion}
	if ready := meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ClaimReady); ready != nil {
		c.Ready, c.Reason, c.Message = string(ready.Status), ready.Reason, ready.Message
	}
	if over := meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ClaimOversized); over != nil && over.Status == metav1.ConditionTrue {
		if c.Oversized = true; !c.Waits() {
			c.Reason, c.Message = over.Reason, over.Message
		}
	}
	pools := r.pools().all
	r.mu.RLock()
	defer r.mu.RUnlock()
	filter, among := r.filter(Everything, &Query{Kind: "IPClaim", Namespace: object.Namespace, Owner: object.Name})
	for _, row := range among {
		if !filter.match(row) {
			continue
		}
		c.Add(row.state.of())
		if c.More = len(c.Addresses) == most; !c.More {
			c.Addresses = append(c.Addresses, r.addressOf(row, pools, now()))
		}
	}
	return c
}
