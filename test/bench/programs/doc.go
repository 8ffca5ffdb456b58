// SPDX-License-Identifier: Apache-2.0

// Package programs measures the programs that ship: the stock kube-scheduler,
// berth-scheduler and berth-controller as processes of their own on a real API
// server whose nodes nobody runs.
package programs
