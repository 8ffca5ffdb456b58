// SPDX-License-Identifier: Apache-2.0

// Package machine runs compiled Go tests as root in an emulated machine with
// Debian's kernel, for drivers that the kernel here lacks: VLAN and ipvlan links,
// SR-IOV. It owns the emulator, the kernel and the programs of the machine, which it
// fetches from Debian, by the mirrors of the host's apt, into a folder of its own, and
// touches nothing else of the host.
//
// A machine is one QEMU process without a disk and without a network, but with cards on a
// network of their own. Its root is an
// initramfs with the kernel's network modules, which the kernel loads as it needs
// them, and with ip, ping, nft and the tests of one package. Package init is its first
// process: it runs the tests, reports their output on the second serial port and powers
// off. The first serial port is the kernel's console.
//
// The processor runs the machine where KVM works, which a kernel shows by its first line.
// Elsewhere the emulator translates instructions (TCG), and the machine is about ten times
// slower than the host.
package machine
