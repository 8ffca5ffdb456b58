// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/veth/wire"
)

const forwarding6 = "net/ipv6/conf/all/forwarding"

// forward makes the node forward packets of the families that pods have.
func (o *Overlay) forward(self local) error {
	keys := []string{}
	if self.has(true) {
		keys = append(keys, "net/ipv4/ip_forward")
	}
	if self.has(false) {
		keys = append(keys, forwarding6)
	}
	for _, key := range keys {
		path := filepath.Join(o.SysctlRoot, key)
		have, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read kernel setting: %w", err)
		}
		if strings.TrimSpace(string(have)) == "1" {
			continue
		}
		if key == forwarding6 {
			// The node's own IPv6 may come from router advertisements.
			w := wire.New(o.SysctlRoot)
			w.Settings = o.Settings
			if err := w.KeepRouters(self.uplink.Attrs().Name); err != nil {
				return fmt.Errorf("keep the node's IPv6 routers: %w", err)
			}
		}
		if err := o.Settings.Keep(key, "1"); err != nil {
			return err
		}
		err = os.WriteFile(path, []byte("1"), 0o644)
		if errors.Is(err, unix.EROFS) || errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("%s must be 1 and is not writable here: set it on the node, or mount the node's /proc/sys/net and name the mount with --sysctl-root: %w", path, err)
		}
		if err != nil {
			return fmt.Errorf("set kernel setting: %w", err)
		}
	}
	return nil
}
