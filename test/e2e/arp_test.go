// SPDX-License-Identifier: Apache-2.0

package e2e

import "net"

// macOf returns the MAC address of a node's uplink.
func (s *stage) macOf(node string) string {
	s.t.Helper()
	var mac string
	s.must(s.node(node).Do(func() error {
		link, err := net.InterfaceByName("eth0")
		if err == nil {
			mac = link.HardwareAddr.String()
		}
		return err
	}))
	return mac
}

// expectOneAnswer checks that a broadcast ARP request for the address is
// answered by exactly that node.
func (s *stage) expectOneAnswer(address, node string) {
	s.t.Helper()
	if err := s.OneAnswers(s.ctx, address, s.macOf(node)); err != nil {
		s.t.Errorf("%s should have it: %v", node, err)
	}
}
