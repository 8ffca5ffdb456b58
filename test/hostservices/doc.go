// SPDX-License-Identifier: Apache-2.0

// Package hostservices tests Berth beside services of a node that change its network, too: the
// real firewalld of Debian, which runs in a network namespace that is a node.
package hostservices
