// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/ipamtest"
)

// Whatever fields a record has that the API server admits, nothing panics, an address at rest is
// free one day, and one that somebody keeps stays. The owners, pods and Services of all records are
// gone, and the node says nothing.
func TestCombinations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		w.agents = &agents{silent: map[string]bool{"node1": true}}
		w.put(&v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: v1alpha1.IPPoolSpec{Cooldown: &metav1.Duration{Duration: time.Minute}}})
		w.put(&v1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: "node"}})
		records := map[string]*v1alpha1.FloatingIP{}
		for ip, refused := range ipamtest.FloatingIPs(time.Now()) {
			if refused == nil {
				w.put(ip)
				records[ip.Name] = ip
			}
		}
		if len(records) < 1000 {
			t.Fatalf("%d combinations are admitted", len(records))
		}
		w.start()
		w.after(24 * time.Hour)
		have, wrong := w.berth.IPs(), 0
		for name, ip := range records {
			if stays := staysWithout(&ip.Spec); stays == (have[name] != nil) {
				continue
			}
			if wrong++; wrong <= 5 {
				t.Errorf("after a day %v is %+v", ip.Spec, have[name])
			}
		}
		if wrong > 0 {
			t.Errorf("%d of %d are wrong", wrong, len(records))
		}
	})
}

// staysWithout returns whether an address stays whose owner, pod and Service are gone.
func staysWithout(spec *v1alpha1.FloatingIPSpec) bool {
	switch {
	case spec.Reserved, spec.Service != nil: // Package services takes it from the Service.
		return true
	case spec.Owner == nil:
		return spec.ReleasedAt == nil
	case spec.Owner.IsNode(), spec.RetainFor != nil:
		return false
	case spec.ExternallyAssigned && spec.Pod == nil && spec.LastPod == "": // No pod ever had it.
		return false
	case spec.Owner.IsService() && spec.ReleasePolicy == v1alpha1.ReleaseRetain: // The controller does not read Services here.
		return true
	}
	return spec.ReleasePolicy == v1alpha1.ReleaseNever
}
