// SPDX-License-Identifier: Apache-2.0

// Package day runs a day of deploys on one machine: kube-scheduler with the plugin and the parts of
// the controller in this process, on API servers in memory, with thousands of nodes. The clock is
// testing/synctest's, so that the day takes as long as its work. The kubelets are those of
// package simulation; Deployments and StatefulSets are rolled out by the test.
//
// In the end memory is compared with the morning's, and so are the sizes of all queues, maps and
// lists that the programs have: see [sizesOf].
package day
