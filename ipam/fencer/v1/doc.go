// SPDX-License-Identifier: Apache-2.0

// Package fencerv1 is the protocol between berth-failover and a fencer, generated
// from fencer.proto, which says what a server must do. Fields are added to it,
// never changed or removed.
package fencerv1
