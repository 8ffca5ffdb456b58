// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A tenure begins when its writer's clock says, but never before the second after the tenure before
// it began.
func TestNextSince(t *testing.T) {
	now := time.Date(2026, time.November, 27, 8, 0, 0, 700_000_000, time.UTC)
	for name, c := range map[string]struct{ before, want time.Time }{
		"the first":               {time.Time{}, now.Truncate(time.Second)},
		"long after":              {now.Add(-time.Hour), now.Truncate(time.Second)},
		"in the same second":      {now.Truncate(time.Second), now.Truncate(time.Second).Add(time.Second)},
		"in the second before":    {now.Truncate(time.Second).Add(-time.Second), now.Truncate(time.Second)},
		"by a clock that is slow": {now.Truncate(time.Second).Add(time.Hour), now.Truncate(time.Second).Add(time.Hour + time.Second)},
	} {
		if got := NextSince(now, c.before); !got.Time.Equal(c.want) {
			t.Errorf("%s: NextSince() = %s, want %s", name, got, c.want)
		}
		spec := FloatingIPSpec{}
		if !c.before.IsZero() {
			spec.Since = &metav1.Time{Time: c.before}
		}
		if got := spec.NextSince(now); !got.Time.Equal(c.want) {
			t.Errorf("%s: of the spec: %s, want %s", name, got, c.want)
		}
	}
}
