// SPDX-License-Identifier: Apache-2.0

package state

import (
	"encoding/json"
	"fmt"

	"github.com/berth-dev/berth/agent/api"
)

// The file:
//
//	meta
//	  magic    "berth-agent"
//	  schema   "1"
//	attachments
//	  <container ID> NUL <interface name>    Attachment as JSON
//
// A version with other records increments schema, and converts an older file when
// it opens it.
const (
	magic  = "berth-agent"
	schema = "1"
)

var (
	bucketMeta        = []byte("meta")
	bucketAttachments = []byte("attachments")
	keyMagic          = []byte("magic")
	keySchema         = []byte("schema")
)

// Phase of an attachment's work.
type Phase string

const (
	// Adding: any side effects of ADD may exist.
	Adding Phase = "adding"
	// Added: ADD is complete, and its caller has the result or will get it.
	Added Phase = "added"
	// Deleting: DEL has begun, and any side effects of ADD may still exist.
	Deleting Phase = "deleting"
	// Withdrawn: the pod lost its addresses, the node no longer answers for
	// them, and the runtime's DEL is still to come.
	Withdrawn Phase = "withdrawn"
)

// Key names an attachment.
type Key struct {
	ContainerID string
	IfName      string
}

// Attachment is one interface of one container.
type Attachment struct {
	ContainerID string  `json:"containerID"`
	IfName      string  `json:"ifName"`
	NetNS       string  `json:"netns"`
	Pod         api.Pod `json:"pod"`
	// Addresses are the pod's floating IPs; none for the default network.
	Addresses []api.Address `json:"addresses,omitempty"`
	// Uplink is the node's link to the networks of the addresses.
	Uplink string `json:"uplink,omitempty"`
	// MTU of the container's interface; 0 means the smallest of the uplinks.
	MTU int `json:"mtu,omitempty"`
	// MAC of the pod's interface in the floating network; empty in records of
	// the first version, which named none.
	MAC string `json:"mac,omitempty"`
	// Network is the complete configuration list that ADD used.
	Network json.RawMessage `json:"network"`
	// Args is CNI_ARGS and Capabilities is runtimeConfig of the ADD.
	Args         string                     `json:"args,omitempty"`
	Capabilities map[string]json.RawMessage `json:"capabilities,omitempty"`
	Phase        Phase                      `json:"phase"`
	// Result of ADD; empty before phase Added.
	Result json.RawMessage `json:"result,omitempty"`
}

// Key returns the attachment's key.
func (a *Attachment) Key() Key { return Key{ContainerID: a.ContainerID, IfName: a.IfName} }

func (k Key) bytes() []byte { return []byte(k.ContainerID + "\x00" + k.IfName) }

func decode(key, value []byte) (*Attachment, error) {
	var a Attachment
	if err := json.Unmarshal(value, &a); err != nil {
		return nil, fmt.Errorf("decode record %q: %w", key, err)
	}
	if string(a.Key().bytes()) != string(key) {
		return nil, fmt.Errorf("record %q is that of container %q, interface %q", key, a.ContainerID, a.IfName)
	}
	switch a.Phase {
	case Adding, Added, Deleting, Withdrawn:
		return &a, nil
	}
	return nil, fmt.Errorf("record %q has phase %q, which this version does not know", key, a.Phase)
}
