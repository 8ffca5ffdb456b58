// SPDX-License-Identifier: Apache-2.0

// Package assignerv1 is the protocol between Berth and an external assigner,
// generated from assigner.proto, which says what a server must do. Fields are
// added to it, never changed or removed.
package assignerv1
