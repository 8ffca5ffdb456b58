// SPDX-License-Identifier: Apache-2.0

package preallocation

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// quotaOf returns how many addresses the ResourceQuotas of a namespace allow its pods to request;
// nil if no ResourceQuota limits them. It ignores quotas with scopes, because they are for some
// pods only. ipam.Preallocate checks the number when it takes an address.
func quotaOf(quotas corelisters.ResourceQuotaLister, namespace string) *int64 {
	all, err := quotas.ResourceQuotas(namespace).List(labels.Everything())
	if err != nil {
		return nil // a lister reads a cache and does not fail
	}
	var least *int64
	for _, quota := range all {
		hard, ok := quota.Spec.Hard[v1.DefaultResourceRequestsPrefix+v1alpha1.ResourceIP]
		if !ok || len(quota.Spec.Scopes) > 0 || quota.Spec.ScopeSelector != nil {
			continue
		}
		if n := hard.Value(); least == nil || n < *least {
			least = &n
		}
	}
	return least
}
