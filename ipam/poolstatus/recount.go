// SPDX-License-Identifier: Apache-2.0

package poolstatus

import (
	"fmt"
	"iter"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
)

// Stale compares the status of each pool with the one that a [Writer] would write from these
// addresses and nodes. It returns a text for each pool whose status differs, by pool name. Pure.
func Stale(objects []*v1alpha1.IPPool, snapshot *pools.Snapshot, nodes iter.Seq[*v1.Node], ips iter.Seq[*v1alpha1.FloatingIP], now time.Time) map[string]string {
	before := make([]v1alpha1.IPPoolStatus, len(objects))
	for i, object := range objects {
		before[i] = object.Status
	}
	after := compute(objects, before, snapshot, snapshot.Reached(nodes), count(objects, snapshot, ips), metav1.NewTime(now).Rfc3339Copy())
	stale := map[string]string{}
	for i, object := range objects {
		if !same(&before[i], &after[i]) {
			stale[object.Name] = differences(&before[i], &after[i])
		}
	}
	return stale
}

// differences says which counts two statuses do not have in common.
func differences(was, is *v1alpha1.IPPoolStatus) string {
	var texts []string
	for _, count := range []struct {
		name    string
		was, is int64
	}{
		{"capacity", was.Capacity, is.Capacity}, {"allocated", was.Allocated, is.Allocated}, {"retained", was.Retained, is.Retained},
		{"reserved", was.Reserved, is.Reserved}, {"cooling", was.Cooling, is.Cooling}, {"free", was.Free, is.Free},
		{"outside", was.Outside, is.Outside}, {"observedGeneration", was.ObservedGeneration, is.ObservedGeneration},
	} {
		if count.was != count.is {
			texts = append(texts, fmt.Sprintf("%s is %d, counted %d", count.name, count.was, count.is))
		}
	}
	if len(texts) == 0 {
		return "conditions or namespaces do not match the addresses"
	}
	return strings.Join(texts, "; ")
}
