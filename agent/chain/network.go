// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"
)

// Network is a parsed configuration list.
type Network struct {
	list *libcni.NetworkConfigList
	raw  []byte
	// chained says that the first plugin is in raw, but not in the list.
	chained bool
}

// Parse reads a configuration list with all its plugins inline.
func Parse(raw []byte) (*Network, error) {
	list, err := libcni.NetworkConfFromBytes(raw)
	if err != nil {
		return nil, fmt.Errorf("parse network configuration: %w", err)
	}
	if len(list.Plugins) == 0 {
		return nil, fmt.Errorf("network configuration %q has no plugins", list.Name)
	}
	if err := utils.ValidateNetworkName(list.Name); err != nil {
		return nil, fmt.Errorf("network configuration %q: %w", list.Name, err)
	}
	if list.CNIVersion == "" {
		list.CNIVersion = "0.2.0"
	}
	if newer, err := version.GreaterThan(list.CNIVersion, version.Current()); err != nil || newer {
		return nil, fmt.Errorf("network configuration %q has cniVersion %q, this agent supports up to %s", list.Name, list.CNIVersion, version.Current())
	}
	for _, p := range list.Plugins {
		if p.Network.Type == "" {
			return nil, fmt.Errorf("network configuration %q has a plugin without a type", list.Name)
		}
	}
	return &Network{list: list, raw: raw}, nil
}

// Name of the network.
func (n *Network) Name() string { return n.list.Name }

// Raw returns the configuration list as JSON, from which Parse makes the same Network.
func (n *Network) Raw() []byte { return n.raw }

// Types returns the plugins' types in order.
func (n *Network) Types() []string {
	all := make([]string, 0, len(n.list.Plugins))
	for _, p := range n.list.Plugins {
		all = append(all, p.Network.Type)
	}
	return all
}

// Declares reports whether a plugin declares a capability of the runtime, such as "bandwidth".
func (n *Network) Declares(capability string) bool {
	return slices.ContainsFunc(n.list.Plugins, func(p *libcni.PluginConfig) bool { return p.Network.Capabilities[capability] })
}

// Chained returns the network without its first plugin, for a caller that does the work
// of that plugin itself. It may have no plugins; Raw returns the complete list.
func (n *Network) Chained() *Network {
	list := *n.list
	list.Plugins = list.Plugins[1:]
	return &Network{list: &list, raw: n.raw, chained: true}
}

// Encode returns a result as JSON in the network's version.
func (n *Network) Encode(result types.Result) (json.RawMessage, error) {
	converted, err := result.GetAsVersion(n.list.CNIVersion)
	if err != nil {
		return nil, fmt.Errorf("convert result to version %s: %w", n.list.CNIVersion, err)
	}
	raw, err := json.Marshal(converted)
	if err != nil {
		return nil, fmt.Errorf("encode result: %w", err)
	}
	return raw, nil
}

func (n *Network) atLeast(v string) bool {
	ok, err := version.GreaterThanOrEqualTo(n.list.CNIVersion, v)
	return err == nil && ok
}

// Attachment describes the container to the plugins.
type Attachment struct {
	ContainerID string
	NetNS       string
	IfName      string
	// Args is CNI_ARGS.
	Args string
	// Capabilities is the runtime's runtimeConfig. A plugin gets the capabilities
	// that it declares.
	Capabilities map[string]json.RawMessage
	// CNIArgs is args.cni of every plugin's configuration (CNI conventions, "args in
	// network config").
	CNIArgs map[string]json.RawMessage
}

// configOf returns the standard input of the plugin at index i.
func (n *Network) configOf(i int, a Attachment, prevResult json.RawMessage) ([]byte, error) {
	inject := n.identity()
	if prevResult != nil {
		inject["prevResult"] = prevResult
	}
	plugin := n.list.Plugins[i]
	runtimeConfig := map[string]json.RawMessage{}
	for capability, declared := range plugin.Network.Capabilities {
		if value, given := a.Capabilities[capability]; declared && given {
			runtimeConfig[capability] = value
		}
	}
	if len(runtimeConfig) > 0 {
		inject["runtimeConfig"] = runtimeConfig
	}
	if len(a.CNIArgs) > 0 {
		inject["args"] = map[string]any{"cni": a.CNIArgs}
	}
	return n.inject(i, inject)
}

// gcConfigOf returns the standard input of the plugin at index i for GC.
func (n *Network) gcConfigOf(i int, valid []types.GCAttachment) ([]byte, error) {
	if valid == nil {
		valid = []types.GCAttachment{}
	}
	inject := n.identity()
	inject["cni.dev/valid-attachments"] = valid
	// The first releases of the specification's library used this name.
	inject["cni.dev/attachments"] = valid
	return n.inject(i, inject)
}

func (n *Network) identity() map[string]any {
	return map[string]any{"name": n.list.Name, "cniVersion": n.list.CNIVersion}
}

func (n *Network) inject(i int, values map[string]any) ([]byte, error) {
	plugin := n.list.Plugins[i]
	conf, err := libcni.InjectConf(plugin, values)
	if err != nil {
		return nil, fmt.Errorf("configure plugin %s of network %q: %w", plugin.Network.Type, n.list.Name, err)
	}
	return conf.Bytes, nil
}

// WithPlugin returns a list whose first plugin, which must be of the given type, has
// values in its configuration.
func (n *Network) WithPlugin(pluginType string, values map[string]any) (*Network, error) {
	if n.Types()[0] != pluginType {
		return nil, fmt.Errorf("network configuration %q: the first plugin must be %s, is %s", n.Name(), pluginType, n.Types()[0])
	}
	var list map[string]json.RawMessage
	if err := json.Unmarshal(n.raw, &list); err != nil {
		return nil, fmt.Errorf("parse network configuration %q: %w", n.Name(), err)
	}
	var plugins []map[string]any
	if err := json.Unmarshal(list["plugins"], &plugins); err != nil {
		return nil, fmt.Errorf("parse plugins of network configuration %q: %w", n.Name(), err)
	}
	maps.Copy(plugins[0], values)
	raw, err := json.Marshal(plugins)
	if err != nil {
		return nil, fmt.Errorf("encode plugins of network configuration %q: %w", n.Name(), err)
	}
	list["plugins"] = raw
	raw, err = json.Marshal(list)
	if err != nil {
		return nil, fmt.Errorf("encode network configuration %q: %w", n.Name(), err)
	}
	return Parse(raw)
}

// Plugin decodes the configuration of the first plugin.
func (n *Network) Plugin(into any) error {
	if err := json.Unmarshal(n.list.Plugins[0].Bytes, into); err != nil {
		return fmt.Errorf("parse first plugin of network configuration %q: %w", n.Name(), err)
	}
	return nil
}
