// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
	"k8s.io/apimachinery/pkg/api/validate/content"

	"github.com/berth-dev/berth/agent/plan"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
)

// parseArgs reads the pod of a call from CNI_ARGS: key=value pairs separated by semicolons. It
// ignores other keys, which the plugins may know, and unlike types.LoadArgs a semicolon at the end.
func parseArgs(args string) (api.Pod, error) {
	var p api.Pod
	for pair := range strings.SplitSeq(args, ";") {
		if pair == "" {
			continue
		}
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return api.Pod{}, fmt.Errorf("%w: CNI_ARGS has %.100q, which is not key=value", ErrRequest, pair)
		}
		switch key {
		case "K8S_POD_NAMESPACE":
			p.Namespace = value
		case "K8S_POD_NAME":
			p.Name = value
		case "K8S_POD_UID":
			p.UID = value
		}
	}
	if p.Namespace == "" || p.Name == "" {
		return api.Pod{}, fmt.Errorf("%w: CNI_ARGS names no pod (K8S_POD_NAMESPACE and K8S_POD_NAME): Berth wires the pods of Kubernetes only", ErrRequest)
	}
	for _, v := range []string{p.Namespace, p.Name, p.UID} {
		if len(content.IsPathSegmentName(v)) > 0 || strings.ContainsRune(v, 0) {
			return api.Pod{}, fmt.Errorf("%w: CNI_ARGS has %.100q, which is no name of a pod", ErrRequest, v)
		}
	}
	return p, nil
}

// requestConfig is the part of the network configuration that the agent reads.
type requestConfig struct {
	Name             string                     `json:"name"`
	RuntimeConfig    map[string]json.RawMessage `json:"runtimeConfig"`
	ValidAttachments []types.GCAttachment       `json:"cni.dev/valid-attachments"`
	// OldAttachments has the key that the first releases of CNI's library used.
	OldAttachments []types.GCAttachment `json:"cni.dev/attachments"`
	// IPAM and PrevResult are not served by ADD. In a DEL, PrevResult is the result of its ADD,
	// where the runtime kept it.
	IPAM       json.RawMessage `json:"ipam"`
	PrevResult json.RawMessage `json:"prevResult"`

	// hasAttachments says that the runtime gave the list, which may be empty.
	hasAttachments bool
}

func parseConfig(raw json.RawMessage) (requestConfig, error) {
	var c requestConfig
	if len(raw) == 0 {
		return c, nil
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return requestConfig{}, fmt.Errorf("%w: decode it: %w", plan.ErrDecode, err)
	}
	if c.ValidAttachments == nil {
		c.ValidAttachments = c.OldAttachments
	}
	c.hasAttachments = c.ValidAttachments != nil
	return c, nil
}

// lists returns whether the runtime says that an attachment is valid.
func (c *requestConfig) lists(key state.Key) bool {
	return slices.ContainsFunc(c.ValidAttachments, func(v types.GCAttachment) bool { return v.ContainerID == key.ContainerID && v.IfName == key.IfName })
}

// supported refuses fields whose neglect would surprise: addresses come from the
// scheduler or from the pod's own network, and the interface of an earlier plugin of the
// list would not be the pod's.
func (c *requestConfig) supported() error {
	for key, value := range map[string]json.RawMessage{"ipam": c.IPAM, "prevResult": c.PrevResult} {
		if text := string(value); text != "" && text != "null" && text != "{}" {
			return fmt.Errorf("%w: %q is %.200s; remove it: %s must be the first plugin of its list, and its addresses are chosen elsewhere", ErrUnsupported, key, text, api.ShimType)
		}
	}
	return nil
}

// checkIDs refuses names that no runtime sends. Package server has checked the names of the shim's
// calls, but older shims and berth-ipam write to the socket, too.
func checkIDs(req *api.Request) error {
	if err := utils.ValidateContainerID(req.ContainerID); err != nil {
		return fmt.Errorf("%w: CNI_CONTAINERID: container ID %.100q: %w", ErrRequest, req.ContainerID, err)
	}
	if err := utils.ValidateInterfaceName(req.IfName); err != nil {
		return fmt.Errorf("%w: CNI_IFNAME: interface name %.100q: %w", ErrRequest, req.IfName, err)
	}
	if strings.ContainsRune(req.IfName, 0) {
		return fmt.Errorf("%w: CNI_IFNAME: interface name %.100q contains NUL", ErrRequest, req.IfName)
	}
	return nil
}
