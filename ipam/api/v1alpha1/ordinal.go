// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"strconv"
	"strings"
)

// OrdinalOf returns the ordinal in the name of a StatefulSet's pod, which is the
// workload's name, a dash and the ordinal. ok is false for other names.
func OrdinalOf(workload, pod string) (ordinal int64, ok bool) {
	text, ok := strings.CutPrefix(pod, workload+"-")
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(text, 10, 31)
	return int64(n), err == nil
}
