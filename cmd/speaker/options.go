// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/spf13/pflag"

	"github.com/berth-dev/berth/cmd/internal/monitoring"
)

type options struct {
	nodeName   string
	nodeIP     string
	passwords  string
	monitoring monitoring.Options
}

func (o *options) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.nodeName, "node-name", os.Getenv("NODE_NAME"), "Name of this node in Kubernetes; default from the environment variable NODE_NAME.")
	flags.StringVar(&o.nodeIP, "node-ip", os.Getenv("HOST_IP"), "This node's own address: its BGP identifier, if it is IPv4. Otherwise the identifier follows from --node-name. Default from the environment variable HOST_IP.")
	flags.StringVar(&o.passwords, "password-dir", "/etc/berth/bgp-passwords", "Folder with the passwords of sessions (TCP MD5, RFC 2385): for each BGPPeer with a password a file of its name.")
	o.monitoring.AddFlags(flags)
}

func (o *options) Validate() error {
	var errs []error
	if o.nodeName == "" {
		errs = append(errs, errors.New("--node-name or the environment variable NODE_NAME must be given"))
	}
	if o.nodeIP != "" {
		if _, err := netip.ParseAddr(o.nodeIP); err != nil {
			errs = append(errs, fmt.Errorf("--node-ip or the environment variable HOST_IP: %w", err))
		}
	}
	return errors.Join(append(errs, o.monitoring.Validate())...)
}

// routerID returns the node's BGP identifier. Two nodes of an autonomous system may not have the
// same.
func (o *options) routerID() netip.Addr {
	if addr, err := netip.ParseAddr(o.nodeIP); err == nil && addr.Unmap().Is4() {
		return addr.Unmap()
	}
	sum := sha256.Sum256([]byte(o.nodeName))
	// Never 0.0.0.0, nor an address that a node has.
	return netip.AddrFrom4([4]byte{240 | sum[0]>>5, sum[1], sum[2], sum[3]})
}
