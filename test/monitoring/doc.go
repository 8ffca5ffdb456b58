// SPDX-License-Identifier: Apache-2.0

// Package monitoring reads what manifests/monitoring gives to Prometheus and Grafana, and has
// Debian's Prometheus try it: its tests say that alerts fire when they should, and that their
// runbooks exist. It installs nothing: the package is unpacked below the lab's programs.
package monitoring
