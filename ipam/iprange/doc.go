// SPDX-License-Identifier: Apache-2.0

// Package iprange implements ranges of IP addresses: their text form, size and intersection. [Set]
// and [Table] find the range of an address by binary search. The package knows no pools and owners,
// and uses only the standard library.
package iprange
