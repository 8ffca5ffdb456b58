// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/berth-dev/berth/cni/api"
)

const (
	// NetworkName is the CNI network of the overlay's pods; the plugin host-local keeps their
	// addresses under this name.
	NetworkName = "berth-overlay"
	// On nodes with flannel, its pods and ours share a bridge and the list of addresses.
	flannelNetwork = "cbr0"
	flannelBridge  = "cni0"
	// BridgeType and HostLocalType are upstream's plugins bridge and host-local under names of our
	// own, so that plugins of the node are not replaced.
	BridgeType    = "berth-bridge"
	HostLocalType = "berth-host-local"
)

// network has the values for the configuration of pods.
type network struct {
	name string
	// bridge is empty if the node routes for each pod.
	bridge     string
	subnets    []netip.Prefix
	mtu        int
	sysctlRoot string
}

// conflist returns the CNI configuration list. Nothing in it masquerades: package rules does.
func (n network) conflist() ([]byte, error) {
	var ranges [][]map[string]string
	for _, s := range n.subnets {
		ranges = append(ranges, []map[string]string{{"subnet": s.String()}})
	}
	plugin := map[string]any{"type": api.OverlayType, "mtu": n.mtu, "sysctlRoot": n.sysctlRoot}
	if n.bridge != "" {
		plugin = map[string]any{
			"type": BridgeType, "bridge": n.bridge, "mtu": n.mtu, "isGateway": true, "isDefaultGateway": true, "hairpinMode": true, "ipMasq": false,
		}
	}
	plugin["ipam"] = map[string]any{"type": HostLocalType, "ranges": ranges}
	raw, err := json.Marshal(map[string]any{"cniVersion": "1.1.0", "name": n.name, "plugins": []map[string]any{plugin}})
	if err != nil {
		return nil, fmt.Errorf("encode the network of the overlay: %w", err)
	}
	return raw, nil
}

// subnetFile has the network of this node, as a running flannel writes it.
type subnetFile struct {
	// inside are the networks of all nodes.
	inside     []netip.Prefix
	subnets    []netip.Prefix
	mtu        int
	masquerade bool
}

// readSubnetFile returns nil if there is no file.
func readSubnetFile(path string) (*subnetFile, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read flannel's settings of this node: %w", err)
	}
	file, err := parseSubnetFile(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; if flannel does not run here any more, delete the file", path, err)
	}
	return file, nil
}

func parseSubnetFile(raw []byte) (*subnetFile, error) {
	var file subnetFile
	scanner := bufio.NewScanner(bytes.NewReader(raw))
	for scanner.Scan() {
		name, value, ok := strings.Cut(strings.TrimSpace(scanner.Text()), "=")
		if !ok {
			continue
		}
		var err error
		switch name {
		case "FLANNEL_NETWORK", "FLANNEL_IPV6_NETWORK":
			file.inside, err = prefixes(file.inside, value)
		case "FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET":
			file.subnets, err = prefixes(file.subnets, value)
		case "FLANNEL_MTU":
			file.mtu, err = strconv.Atoi(value)
		case "FLANNEL_IPMASQ":
			file.masquerade, err = strconv.ParseBool(value)
		}
		if err != nil {
			return nil, fmt.Errorf("%s=%q: %w", name, value, err)
		}
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf("parse: %w", err)
	}
	if len(file.subnets) == 0 || file.mtu == 0 {
		return nil, errors.New("lacks FLANNEL_SUBNET or FLANNEL_MTU")
	}
	return &file, nil
}

// prefixes appends the prefixes of a list, without host bits: a subnet is written with the address
// of its bridge.
func prefixes(to []netip.Prefix, list string) ([]netip.Prefix, error) {
	for text := range strings.SplitSeq(list, ",") {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			return nil, err
		}
		to = append(to, p.Masked())
	}
	return to, nil
}
