// SPDX-License-Identifier: Apache-2.0

// Package load has the load of the scheduling benchmarks: the cases that are compared
// with each other, their nodes, pods and pools, and the rival, which makes the
// cheapest durable record per pod that an API server offers.
package load
