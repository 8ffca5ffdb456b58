// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"strconv"
	"strings"
)

// OrdinalOf reads the ordinal off the name of a pod of a StatefulSet, which is the
// workload's name, a dash and the ordinal.
func OrdinalOf(workload, pod string) (ordinal int64, ok bool) {
	text, ok := strings.CutPrefix(pod, workload+"-")
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(text, 10, 31)
	return int64(n), err == nil
}
