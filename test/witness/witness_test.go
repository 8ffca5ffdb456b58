// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cachetesting "k8s.io/client-go/tools/cache/testing"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

func address(number int, owner *v1alpha1.Owner) *v1alpha1.FloatingIP {
	name := fmt.Sprintf("10.0.70.%d", number)
	return &v1alpha1.FloatingIP{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.FloatingIPSpec{Address: name, Owner: owner},
	}
}

// Neighbours in a list count each for itself, and whose name is alike or who was
// there before under the same name does not count.
func TestOwnedBy(t *testing.T) {
	web := &v1alpha1.Owner{Kind: "StatefulSet", Name: "web", UID: "1"}
	ips := []*v1alpha1.FloatingIP{
		address(12, web), address(10, web), address(11, web),
		address(13, &v1alpha1.Owner{Kind: "StatefulSet", Name: "web", UID: "2"}),
		address(14, &v1alpha1.Owner{Kind: "StatefulSet", Name: "web-2", UID: "3"}),
		address(15, nil),
	}
	got := ownedBy(&metav1.ObjectMeta{Name: "web", UID: types.UID("1")}, ips)
	if want := []string{"10.0.70.10", "10.0.70.11", "10.0.70.12"}; !slices.Equal(got, want) {
		t.Errorf("web owns %v, want %v", got, want)
	}
}

// A condition on a number of objects must not hold while the first list is still
// coming in, and is looked at again when an object goes.
func TestUntilAll(t *testing.T) {
	const there, wanted = 50, 20
	source := cachetesting.NewFakeControllerSource()
	for i := range there {
		source.Add(address(i, nil))
	}
	var seen []int
	err := untilAll(t.Context(), source, &v1alpha1.FloatingIP{}, func(ips []*v1alpha1.FloatingIP) bool {
		if len(seen) == 0 {
			for i := range there - wanted {
				source.Delete(address(i, nil))
			}
		}
		seen = append(seen, len(ips))
		return len(ips) == wanted
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen[0] != there || seen[len(seen)-1] != wanted || !slices.IsSortedFunc(seen, func(a, b int) int { return b - a }) {
		t.Errorf("%d objects, of which %d were deleted, were seen as %v", there, there-wanted, seen)
	}
}

// A wait ends with the context, and says why that ended.
func TestUntilAllEnds(t *testing.T) {
	cause := errors.New("nobody waits any more")
	ctx, cancel := context.WithCancelCause(t.Context())
	err := untilAll(ctx, cachetesting.NewFakeControllerSource(), &v1alpha1.FloatingIP{}, func([]*v1alpha1.FloatingIP) bool {
		cancel(cause)
		return false
	})
	if !errors.Is(err, cause) {
		t.Errorf("the wait ended with %v, want %v", err, cause)
	}
}
