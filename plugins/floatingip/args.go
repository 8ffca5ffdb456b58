// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"bytes"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-dev/berth/ipam/remote"
)

// Args are the plugin's arguments in pluginConfig. They must be the same in all profiles of a
// process.
type Args struct {
	// GalaxyAliases makes the plugin accept Galaxy's annotations and resource names
	// in place of Berth's.
	GalaxyAliases bool `json:"galaxyAliases,omitempty"`
	// AgentNamespace is the namespace of the agents' pods: only nodes with a ready agent get
	// pods that ask for a floating IP. Empty: $POD_NAMESPACE; if that is empty, too, nodes need
	// no agent.
	AgentNamespace string `json:"agentNamespace,omitempty"`
	// Assigner configures the connection to the external assigner, for pools that need it. The zero
	// value means that there is no external assigner.
	Assigner remote.Options `json:"assigner,omitzero"`
}

// decodeArgs refuses unknown fields, so that no setting is silently ignored.
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
