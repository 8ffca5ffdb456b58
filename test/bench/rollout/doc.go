// SPDX-License-Identifier: Apache-2.0

// Package rollout measures how long it takes on a lab until all pods of many Deployments
// run, with and without Berth.
package rollout
