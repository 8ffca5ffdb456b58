// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"bytes"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-dev/berth/ipam/assigner"
)

// Args are what pluginConfig says of the plugin. All profiles of a process must
// have the same.
type Args struct {
	// GalaxyAliases makes pods' annotations and resource names of Galaxy mean what
	// their counterparts of Berth mean.
	GalaxyAliases bool `json:"galaxyAliases,omitempty"`
	// Assigner says how the external assigner is reached, for pools that need it.
	// The zero value means that there is none.
	Assigner assigner.Options `json:"assigner,omitzero"`
}

// decodeArgs refuses fields that it does not know: a setting that is silently
// ignored misleads.
func decodeArgs(object runtime.Object) (Args, error) {
	var args Args
	if object == nil {
		return args, nil
	}
	unknown, ok := object.(*runtime.Unknown)
	if !ok {
		return args, fmt.Errorf("plugin %s: args are a %T", Name, object)
	}
	if len(unknown.Raw) == 0 {
		return args, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(unknown.Raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&args); err != nil {
		return args, fmt.Errorf("plugin %s: read args: %w", Name, err)
	}
	if err := args.Assigner.Validate(); err != nil {
		return args, fmt.Errorf("plugin %s: args.assigner: %w", Name, err)
	}
	return args, nil
}
