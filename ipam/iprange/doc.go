// SPDX-License-Identifier: Apache-2.0

// Package iprange implements ranges of IP addresses: their text form, size and
// intersection. [Set] and [Table] find the range of an address by binary search. The
// package knows nothing of pools or owners, and uses the standard library only.
package iprange
