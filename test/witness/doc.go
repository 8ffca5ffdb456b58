// SPDX-License-Identifier: Apache-2.0

// Package witness says what can be seen of pods on a lab: in the API, and from
// the client host, which is not part of the cluster. It changes nothing.
package witness
