// SPDX-License-Identifier: Apache-2.0

// Package build says of which version a program is, as Go stamped it when it compiled: the tag of a
// release, or the commit with its time.
package build

import (
	"runtime"
	"runtime/debug"

	"k8s.io/component-base/metrics"
)

// Version returns the version of this program, "unknown" for one that was compiled outside of a
// repository.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "unknown"
	}
	return info.Main.Version
}

// NewMetrics makes the metric of the version and registers it.
func NewMetrics(register func(...metrics.Registerable)) {
	info := metrics.NewGaugeVec(&metrics.GaugeOpts{
		Subsystem: "berth", Name: "build_info",
		Help: "1, with the version of the program and of the Go that compiled it.",
	}, []string{"version", "goversion"})
	register(info)
	info.WithLabelValues(Version(), runtime.Version()).Set(1)
}
