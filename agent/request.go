// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-dev/berth/agent/api"
)

// podArgs is what the kubelet's runtime says of the pod in CNI_ARGS.
type podArgs struct {
	namespace, name, uid string
}

// parseArgs reads CNI_ARGS: key=value pairs separated by semicolons. Keys that
// we do not need are left to the plugins.
func parseArgs(args string) (podArgs, error) {
	var p podArgs
	for pair := range strings.SplitSeq(args, ";") {
		if pair == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return podArgs{}, fmt.Errorf("%w: CNI_ARGS has %.100q, which is not key=value", ErrRequest, pair)
		}
		switch key {
		case "K8S_POD_NAMESPACE":
			p.namespace = value
		case "K8S_POD_NAME":
			p.name = value
		case "K8S_POD_UID":
			p.uid = value
		}
	}
	if p.namespace == "" || p.name == "" {
		return podArgs{}, fmt.Errorf("%w: CNI_ARGS names no pod (K8S_POD_NAMESPACE and K8S_POD_NAME): Berth wires the pods of Kubernetes only", ErrRequest)
	}
	for _, v := range []string{p.namespace, p.name, p.uid} {
		if strings.ContainsAny(v, "/%\x00") || v == "." || v == ".." {
			return podArgs{}, fmt.Errorf("%w: CNI_ARGS has %.100q, which is no name of a pod", ErrRequest, v)
		}
	}
	return p, nil
}

// requestConfig is what the agent reads of the configuration that the shim
// passes on.
type requestConfig struct {
	RuntimeConfig    map[string]json.RawMessage `json:"runtimeConfig"`
	ValidAttachments []types.GCAttachment       `json:"cni.dev/valid-attachments"`
	// OldAttachments is how the first releases of CNI's library called them.
	OldAttachments []types.GCAttachment `json:"cni.dev/attachments"`

	hasAttachments bool
}

func parseConfig(raw json.RawMessage) (requestConfig, error) {
	var c requestConfig
	if len(raw) == 0 {
		return c, nil
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return requestConfig{}, fmt.Errorf("%w: decode the network configuration: %w", ErrRequest, err)
	}
	if c.ValidAttachments == nil {
		c.ValidAttachments = c.OldAttachments
	}
	c.hasAttachments = c.ValidAttachments != nil
	return c, nil
}

// checkIDs makes sure of what becomes keys and names. The runtime checked them
// by the same rules; whoever else writes to the socket may not have.
func checkIDs(req *api.Request) error {
	if req.ContainerID == "" || len(req.ContainerID) > 256 || strings.ContainsAny(req.ContainerID, "/\x00 ") {
		return fmt.Errorf("%w: container ID %.100q", ErrRequest, req.ContainerID)
	}
	if req.IfName == "" || len(req.IfName) > 15 || strings.ContainsAny(req.IfName, "/:\x00 \t\n") || req.IfName == "." || req.IfName == ".." {
		return fmt.Errorf("%w: interface name %.100q", ErrRequest, req.IfName)
	}
	return nil
}
