// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

func ip(namespace, owner, node, pod string, since int) *v1alpha1.FloatingIP {
	at := metav1.NewTime(time.Unix(int64(since), 0))
	made := &v1alpha1.FloatingIP{Spec: v1alpha1.FloatingIPSpec{Node: node, Since: &at, Owner: &v1alpha1.Owner{Kind: "StatefulSet", Namespace: namespace, Name: owner}}}
	if pod != "" {
		made.Spec.Pod = &v1alpha1.PodReference{Name: pod}
	}
	return made
}

func TestTally(t *testing.T) {
	all := []*v1alpha1.FloatingIP{
		ip("shop", "web", "n1", "web-0", 1), ip("shop", "web", "n2", "web-1", 2), ip("shop", "db", "n1", "", 30), ip("shop", "db", "n1", "", 20),
		ip("ads", "web", "n2", "web-0", 5), {Spec: v1alpha1.FloatingIPSpec{Reserved: true}}, {Spec: v1alpha1.FloatingIPSpec{ReleasedAt: &metav1.Time{}, Node: "n2"}},
	}
	for by, want := range map[string]string{
		nodes:      "n1 1+2 20, n2 2+0 0, ",
		namespaces: "shop 2+2 20, ads 1+0 0, ",
		owners:     "StatefulSet shop/db 0+2 20, StatefulSet shop/web 2+0 0, StatefulSet ads/web 1+0 0, ",
	} {
		tally := By(by)
		for _, each := range all {
			tally.Add(each)
		}
		got := ""
		for _, share := range tally.Most(0) {
			oldest := int64(0)
			if share.OldestRetained != nil {
				oldest = share.OldestRetained.Unix()
			}
			got += fmt.Sprintf("%s %d+%d %d, ", share.Name, share.Held, share.Retained, oldest)
		}
		if got != want {
			t.Errorf("by %s: %s, want %s", by, got, want)
		}
		if most := tally.Most(1); len(most) != 1 {
			t.Errorf("the most is %v", most)
		}
	}
}
