// SPDX-License-Identifier: Apache-2.0

package overlay

import "github.com/berth-dev/berth/cni/veth/wire"

// forward makes the node forward packets of the families that pods have.
func (o *Overlay) forward(self local) error {
	w := wire.New(o.SysctlRoot)
	w.Settings = o.Settings
	if self.has(true) {
		if err := w.SetOfNode("net/ipv4/ip_forward", "1"); err != nil {
			return err
		}
	}
	if self.has(false) {
		return w.Forward6(self.uplink.Attrs().Name)
	}
	return nil
}
