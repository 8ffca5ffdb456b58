// SPDX-License-Identifier: Apache-2.0

package event

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

type recorder struct{ note string }

func (r *recorder) Eventf(_, _ runtime.Object, _, _, _, note string, args ...any) {
	r.note = fmt.Sprintf(note, args...)
}

func TestRecord(t *testing.T) {
	for _, test := range []struct{ name, note, want string }{
		{"a verb of fmt", "100%d taken", "100%d taken"},
		{"as long as may be", strings.Repeat("n", 1000), strings.Repeat("n", 1000)},
		{"too long", strings.Repeat("n", 1001), strings.Repeat("n", 1000) + "…"},
		{"too long, with characters of two bytes", "n" + strings.Repeat("ä", 500), "n" + strings.Repeat("ä", 499) + "…"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var r recorder
			Warning("Reason", test.note).Record(&r, &v1.Pod{}, nil, "Test")
			if r.note != test.want {
				t.Errorf("%q is recorded as %q, want %q", test.note, r.note, test.want)
			}
		})
	}
}
