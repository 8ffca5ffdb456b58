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
// A version that reads records differently increments schema and converts the
// file when it opens it.
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

// Phase is how far an attachment got.
type Phase string

const (
	// Adding: side effects of ADD may exist, all or none of them.
	Adding Phase = "adding"
	// Added: ADD is complete and its result was or will be given out.
	Added Phase = "added"
	// Deleting: side effects may exist, DEL has begun.
	Deleting Phase = "deleting"
	// Withdrawn: the pod lost its addresses; the node carries nothing for it,
	// and the runtime's DEL is still to come.
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
	// Uplink is the link that the addresses are reached by.
	Uplink string `json:"uplink,omitempty"`
	// MAC is that of the pod's interface in the floating network; empty where
	// the agent that wired it named none.
	MAC string `json:"mac,omitempty"`
	// Network is the complete configuration list that ADD used.
	Network json.RawMessage `json:"network"`
	// Args is CNI_ARGS, Capabilities is runtimeConfig, as ADD passed them.
	Args         string                     `json:"args,omitempty"`
	Capabilities map[string]json.RawMessage `json:"capabilities,omitempty"`
	Phase        Phase                      `json:"phase"`
	// Result is what the last plugin returned; none before phase Added.
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
