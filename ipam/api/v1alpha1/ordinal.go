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

// IsNamedByOrdinal says whether a pod of a workload of any kind is named as a
// StatefulSet names its pods, so that another of the same name will follow it. Five
// digits that the API server may have put behind metadata.generateName are no
// ordinal: it draws them, with letters, from these (SimpleNameGenerator in
// k8s.io/apiserver/pkg/storage/names), and one name in 800 has no letter.
func IsNamedByOrdinal(workload, pod string) bool {
	_, ok := OrdinalOf(workload, pod)
	text := strings.TrimPrefix(pod, workload+"-")
	return ok && (len(text) != 5 || strings.Trim(text, "2456789") != "")
}
