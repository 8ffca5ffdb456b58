// SPDX-License-Identifier: Apache-2.0

// Package book measures the book of addresses by itself: without a scheduler,
// and with an API server that only tells what it has.
package book
