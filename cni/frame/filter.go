// SPDX-License-Identifier: Apache-2.0

package frame

import (
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// ToThisHost begins the filter of a packet socket: it drops frames to other hosts, and frames of
// VLANs without a link on the node. Linux gives such VLAN frames, without their tag, to the sockets
// of the link below, as frames to other hosts.
func ToThisHost() []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.PACKET_OTHERHOST, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
	}
}
