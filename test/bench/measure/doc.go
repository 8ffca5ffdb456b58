// SPDX-License-Identifier: Apache-2.0

// Package measure reads what programs say of themselves in Prometheus metrics,
// as the difference between two moments: events before a benchmark's first pod,
// and after its last one, do not count.
package measure
