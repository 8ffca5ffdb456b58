// SPDX-License-Identifier: Apache-2.0

package attachdef

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// AnyPlugin allows all networks, with all that their configurations say.
const AnyPlugin = "*"

// Allowed lists the plugins, also IPAM plugins, for networks that may be written by users: TYPE for
// a plugin without a master, or TYPE=MASTER, where MASTER is a glob.
type Allowed []string

// Validate returns an error for an item that cannot be read.
func (a Allowed) Validate() error {
	for _, item := range a {
		plugin, master, _ := strings.Cut(item, "=")
		if _, err := path.Match(master, ""); err != nil || plugin == "" {
			return fmt.Errorf("%q is neither TYPE nor TYPE=MASTER, where MASTER is a glob", item)
		}
	}
	return nil
}

func (a Allowed) has(plugin, master string) bool {
	return slices.ContainsFunc(a, func(item string) bool {
		name, glob, _ := strings.Cut(item, "=")
		matches, err := path.Match(glob, master)
		return name == plugin && matches && err == nil
	})
}

// These are the fields that configurations of allowed plugins may have. Except the master, none
// names a file, a program or a device of the node, which plugins use as root. Plugins read a field
// in any letter case.
var (
	listFields   = []string{"cniVersion", "disableCheck", "name", "plugins"}
	pluginFields = []string{"capabilities", "cniVersion", "dns", "ipam", "master", "mode", "mtu", "name", "type"}
	ipamFields   = []string{"addresses", "gateway", "rangeEnd", "rangeStart", "ranges", "routes", "subnet", "type"}
)

// confine returns the configuration of a network, if it is allowed, as a list with this name:
// plugins share their state between networks of the same name.
func (a Allowed) confine(raw json.RawMessage, name string) (json.RawMessage, error) {
	if len(raw) == 0 {
		return nil, errors.New("its spec.config is empty, which stands for a file of the node")
	}
	var list map[string]json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("read its spec.config: %w", err)
	}
	plugins := []json.RawMessage{raw}
	if list["plugins"] == nil {
		list = map[string]json.RawMessage{"cniVersion": list["cniVersion"]}
	} else if err := errors.Join(only(list, listFields), json.Unmarshal(list["plugins"], &plugins)); err != nil {
		return nil, fmt.Errorf("read its list: %w", err)
	}
	for i := range plugins {
		var err error
		if plugins[i], err = a.plugin(plugins[i]); err != nil {
			return nil, err
		}
	}
	return encodeFields(list, map[string]any{"name": name, "plugins": plugins})
}

// plugin returns the configuration of a plugin, if it is allowed, with each field once.
func (a Allowed) plugin(raw json.RawMessage) (json.RawMessage, error) {
	var is struct{ Type, Master string }
	fields, err := once(raw, pluginFields, &is)
	if err != nil {
		return nil, fmt.Errorf("read its plugin %q: %w", is.Type, err)
	}
	if !a.has(is.Type, is.Master) {
		return nil, fmt.Errorf("its plugin %q with the master %q is not one of %s", is.Type, is.Master, strings.Join(a, ", "))
	}
	more := map[string]any{"type": is.Type}
	if fields["ipam"] != nil {
		var is struct{ Type string }
		ipam, err := once(fields["ipam"], ipamFields, &is)
		if err != nil {
			return nil, fmt.Errorf("read its ipam: %w", err)
		}
		if is.Type != "" && !a.has(is.Type, "") {
			return nil, fmt.Errorf("its IPAM plugin %q is not one of %s", is.Type, strings.Join(a, ", "))
		}
		more["ipam"] = ipam
	}
	return encodeFields(fields, more)
}

// once returns the fields of a configuration, each with its last value, and decodes the fields in
// these. A plugin must not read another value than was checked here, as with a repeated field whose
// last value is null.
func once(raw json.RawMessage, these []string, into any) (map[string]json.RawMessage, error) {
	var fields map[string]json.RawMessage
	err := json.Unmarshal(raw, &fields)
	read, failed := json.Marshal(fields)
	return fields, errors.Join(err, failed, only(fields, these), json.Unmarshal(read, into))
}

// only returns an error that names a field outside of these.
func only(fields map[string]json.RawMessage, these []string) error {
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		if !slices.Contains(these, field) {
			return fmt.Errorf("it may not have the field %q, but %s", field, strings.Join(these, ", "))
		}
	}
	return nil
}

func encodeFields(fields map[string]json.RawMessage, more map[string]any) (json.RawMessage, error) {
	all := maps.Clone(more)
	for field, value := range fields {
		if _, given := more[field]; !given && value != nil {
			all[field] = value
		}
	}
	raw, err := json.Marshal(all)
	if err != nil {
		return nil, fmt.Errorf("encode its configuration: %w", err)
	}
	return raw, nil
}
