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

// LeaderOf returns the ordinal of the leader in the name of a worker, which is the leader's name, a
// dash and a number. ok is false for other names.
func LeaderOf(workload, pod string) (ordinal int64, ok bool) {
	at := strings.LastIndex(pod, "-")
	if at < 0 {
		return 0, false
	}
	leader := pod[:at]
	if _, ok := OrdinalOf(leader, pod); !ok {
		return 0, false
	}
	return OrdinalOf(workload, leader)
}
