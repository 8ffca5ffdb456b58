// SPDX-License-Identifier: Apache-2.0

// Package load is what the scheduling benchmarks run: the cases that are compared
// with each other, their nodes, pods and pools, and the rival, which makes the
// cheapest durable record per pod that an API server offers.
package load
