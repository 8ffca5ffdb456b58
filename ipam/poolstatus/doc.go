// SPDX-License-Identifier: Apache-2.0

// Package poolstatus keeps the status of IPPools: the numbers of allocated, retained,
// reserved, cooling and free addresses, and whether the pool is usable. It emits events
// when these change, and exports metrics. It reads pools and FloatingIPs, and writes only
// IPPool status.
package poolstatus
