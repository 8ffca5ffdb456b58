// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"fmt"
	"strings"

	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/rtnl"
)

// Marks of our links. They must never change: by them a new version finds the links of an old
// version. The letter after bth is no hexadecimal digit, in contrast to the names of package wire's
// links.
const (
	nodeLinkPrefix = rtnl.LinkPrefix + "v"
	portPrefix     = netfilter.PortPrefix
	vlanPrefix     = netfilter.VLANPrefix
	bridgePrefix   = netfilter.BridgePrefix
	// newPrefix is for an interface before its move into the container.
	newPrefix = "bthn"
	// aliasPrefix begins the alias of every link on the node.
	aliasPrefix = "berth "
)

// TableName is the name of the nftables tables, in the family netdev.
const TableName = "berth"

// Prefixes of locally administered MAC addresses, which differ from the prefixes of package wire
// and of pods.
const (
	hostMACPrefix = 0xb0
	nodeMACPrefix = 0xb1
	podMACPrefix  = 0xb2
)

// NodeLink returns the name of both ends of a container's node link.
func NodeLink(containerID, ifName string) string {
	return rtnl.NameOf(nodeLinkPrefix, containerID, ifName)
}

func portOf(containerID, ifName string) string { return rtnl.NameOf(portPrefix, containerID, ifName) }

// newName returns the name of a segment's interface until it is in the container: the kernel makes
// it on the node, where another link may have the interface's name.
func newName(containerID, ifName string) string { return rtnl.NameOf(newPrefix, containerID, ifName) }

// FurtherInterface returns the name of a container's interface for a VLAN, except the VLAN of the
// first address, whose interface is ifName.
func FurtherInterface(ifName string, vlan int) string { return fmt.Sprintf("%s.%d", ifName, vlan) }

func vlanName(uplink, vlan int) string   { return fmt.Sprintf("%s%d.%d", vlanPrefix, uplink, vlan) }
func bridgeName(uplink, vlan int) string { return fmt.Sprintf("%s%d.%d", bridgePrefix, uplink, vlan) }

// use is an interface of a container, from the alias of its node link.
type use struct {
	ifName string
	// lower is the link below the interface; in mode bridge, the bridge.
	lower string
}

// formatAlias returns the alias of a container's link: the mode, then interface@link.
func formatAlias(mode Mode, uses []use) string {
	words := []string{string(mode)}
	for _, u := range uses {
		words = append(words, u.ifName+"@"+u.lower)
	}
	return aliasPrefix + strings.Join(words, " ")
}

// parseAlias reads an alias; ok is false for links that are not ours.
func parseAlias(alias string) (mode Mode, uses []use, ok bool) {
	text, ok := strings.CutPrefix(alias, aliasPrefix)
	fields := strings.Fields(text)
	if !ok || len(fields) == 0 {
		return "", nil, false
	}
	for _, f := range fields[1:] {
		if ifName, lower, found := strings.Cut(f, "@"); found {
			uses = append(uses, use{ifName, lower})
		}
	}
	return Mode(fields[0]), uses, true
}
