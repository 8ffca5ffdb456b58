// SPDX-License-Identifier: Apache-2.0

// Package backendtest runs the tests that every backend of network policies passes: packages table
// (nftables) and iptables (ipset and iptables, both variants).
package backendtest
