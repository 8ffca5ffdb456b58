// SPDX-License-Identifier: Apache-2.0

// Package berth is the root of Berth: floating IPs for Kubernetes pods. It has no
// code; its test holds the rule of which package may import which.
package berth
