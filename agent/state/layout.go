// SPDX-License-Identifier: Apache-2.0

package state

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/berth-dev/berth/cni/api"
)

// The file:
//
//	meta
//	  magic    "berth-agent"
//	  schema   "1"
//	  boot     the kernel's boot ID
//	containers
//	  <container ID> NUL <interface name>    Container as JSON
//
// A version with other records increments schema. All other versions refuse the file and leave it
// unchanged. A field whose absence means "not known" does not need a new schema: an older version
// works as before, and drops the field from the records that it writes.
const (
	magic  = "berth-agent"
	schema = "1"
)

var (
	bucketMeta       = []byte("meta")
	bucketContainers = []byte("containers")
	keyMagic         = []byte("magic")
	keySchema        = []byte("schema")
	keyBoot          = []byte("boot")
)

// Phase of the work on a container's network.
type Phase string

const (
	// Adding: any side effects of ADD may exist.
	Adding Phase = "adding"
	// Added: ADD is complete, and its caller has the result or will get it.
	Added Phase = "added"
	// Deleting: DEL has begun, and any side effects of ADD may still exist.
	Deleting Phase = "deleting"
	// Withdrawn: the pod lost its addresses, the node no longer answers for
	// them, and the runtime's DEL, GC or the end of its network namespace is still to come.
	Withdrawn Phase = "withdrawn"
)

// Phases are all phases.
var Phases = []Phase{Adding, Added, Deleting, Withdrawn}

// Key identifies a record by the container and interface of the runtime's call. A runtime may
// attach a container more than once, with another interface each time.
type Key struct {
	ContainerID string
	IfName      string
}

// Container is the network of a container, as one ADD of the runtime made it. DEL, CHECK
// and GC concern all its attachments.
type Container struct {
	ContainerID string `json:"containerID"`
	// IfName is the interface that the runtime asked for: the interface of the first attachment.
	IfName string  `json:"ifName"`
	NetNS  string  `json:"netns"`
	Pod    api.Pod `json:"pod"`
	// Args is CNI_ARGS and Capabilities is runtimeConfig of the ADD.
	Args         string                     `json:"args,omitempty"`
	Capabilities map[string]json.RawMessage `json:"capabilities,omitempty"`
	// Attachments are in the order of ADD. DEL undoes them backwards.
	Attachments []Attachment `json:"attachments"`
	// HostPorts are the ports of the node that lead to the pod while the phase is added.
	HostPorts []HostPort `json:"hostPorts,omitempty"`
	// GalaxyPorts says that the pod asked for host ports by Galaxy's annotation.
	GalaxyPorts bool `json:"galaxyPorts,omitempty"`
	// WhenReady says that routing daemons announce the pod's addresses only while it is Ready.
	WhenReady bool `json:"whenReady,omitempty"`
	// Standby says that the pod is the target of a live migration, and that its virtual machine has
	// yet to come: the node does not carry the addresses.
	Standby bool  `json:"standby,omitempty"`
	Phase   Phase `json:"phase"`
	// Held has the API's records of the pod's floating IPs, if they are known.
	Held map[netip.Addr]Held `json:"held,omitempty"`
	// Reason says why the addresses are withdrawn; empty in the other phases.
	Reason string `json:"reason,omitempty"`
	// Result of ADD; empty before phase Added.
	Result json.RawMessage `json:"result,omitempty"`
}

// Held is the API's record of an address.
type Held struct {
	// Version is the resourceVersion of the FloatingIP, as a number, at which the API said that the
	// pod holds the address.
	Version uint64 `json:"version,omitempty"`
	// Since is when the pod got the address.
	Since time.Time `json:"since,omitzero"`
	// LastNode had the address last, unless it is proved that it no longer answers for it.
	LastNode    string `json:"lastNode,omitempty"`
	LastNodeUID string `json:"lastNodeUID,omitempty"`
	// Failover says that the pod is moved when its node is lost: a node that is cut off does not
	// answer for the address.
	Failover bool `json:"failover,omitempty"`
	// Newest is the Version by which another node has asserted the address.
	Newest uint64 `json:"newest,omitempty"`
	// Twin says that the pod is the twin of the one to which the API gave the address, on LastNode.
	Twin bool `json:"twin,omitempty"`
}

// HostPort is a port of the node that leads to the pod.
type HostPort struct {
	api.HostPort

	// Random says that the node chose the number.
	Random bool `json:"random,omitempty"`
}

// Attachment is one interface of a container and its network.
type Attachment struct {
	IfName string `json:"ifName"`
	// Definition is namespace/name of the NetworkAttachmentDefinition; empty for a network of the
	// node.
	Definition string `json:"definition,omitempty"`
	// Driver is the name of the network type (package nettype); empty if the network takes no floating
	// IPs, and its plugins do all the work.
	Driver string `json:"driver,omitempty"`
	// Addresses are the pod's floating IPs on the interface; none without a driver.
	Addresses []api.Address `json:"addresses,omitempty"`
	// Uplink is the node's link to the networks of the addresses.
	Uplink string `json:"uplink,omitempty"`
	// MTU of the container's interface; 0 means the smallest of the uplinks.
	MTU int `json:"mtu,omitempty"`
	// MAC of the container's interface; empty if a plugin chooses it.
	MAC string `json:"mac,omitempty"`
	// Network is the complete configuration list that ADD used.
	Network json.RawMessage `json:"network"`
	// Capabilities is the runtimeConfig of this network alone; the first attachment also has the
	// runtimeConfig of the runtime.
	Capabilities map[string]json.RawMessage `json:"capabilities,omitempty"`
	// DefaultRoute has the gateways of the pod's default route, if it is on this interface by
	// the pod's choice.
	DefaultRoute []netip.Addr `json:"defaultRoute,omitempty"`
	// Args is args.cni of the plugins' configurations.
	Args map[string]json.RawMessage `json:"args,omitempty"`
	// Result of the network's plugins; empty until they have ended, and while they have not made a
	// lost interface again.
	Result json.RawMessage `json:"result,omitempty"`
	// Link is the index of the interface in the container, if only plugins made it and it was seen
	// there. It is 0 if it was not seen, because some plugins make no interface, and after the pod was
	// told that the interface is gone.
	Link int `json:"link,omitempty"`
	// Remaking says that the interface was gone, and that its plugins have not made it again since.
	Remaking bool `json:"remaking,omitempty"`
}

// Key returns the record's key.
func (c *Container) Key() Key { return Key{ContainerID: c.ContainerID, IfName: c.IfName} }

// Addresses returns the pod's floating IPs on all interfaces.
func (c *Container) Addresses() []api.Address {
	var all []api.Address
	for _, a := range c.Attachments {
		all = append(all, a.Addresses...)
	}
	return all
}

// Clone returns a copy that shares only values that nobody changes.
func (c *Container) Clone() *Container {
	clone := *c
	clone.Capabilities = maps.Clone(c.Capabilities)
	clone.Attachments = slices.Clone(c.Attachments)
	clone.HostPorts, clone.Held = slices.Clone(c.HostPorts), maps.Clone(c.Held)
	for i := range clone.Attachments {
		a := &clone.Attachments[i]
		a.Addresses, a.Capabilities, a.Args = slices.Clone(a.Addresses), maps.Clone(a.Capabilities), maps.Clone(a.Args)
	}
	return &clone
}

func (k Key) bytes() []byte { return []byte(k.ContainerID + "\x00" + k.IfName) }

func decode(key, value []byte) (*Container, error) {
	var c Container
	if err := json.Unmarshal(value, &c); err != nil {
		return nil, fmt.Errorf("decode record %q: %w: %w", key, ErrDamaged, err)
	}
	if string(c.Key().bytes()) != string(key) {
		return nil, fmt.Errorf("record %q belongs to container %q, interface %q", key, c.ContainerID, c.IfName)
	}
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("record %q %w", key, err)
	}
	return &c, nil
}

// validate returns an error that continues a sentence about the record.
func (c *Container) validate() error {
	if !slices.Contains(Phases, c.Phase) {
		return fmt.Errorf("has phase %q, which this version does not know", c.Phase)
	}
	if len(c.Attachments) == 0 || c.Attachments[0].IfName != c.IfName {
		return fmt.Errorf("has no attachment for interface %q in the first place", c.IfName)
	}
	seen := map[string]bool{}
	for _, a := range c.Attachments {
		if seen[a.IfName] {
			return fmt.Errorf("has two attachments for interface %q", a.IfName)
		}
		seen[a.IfName] = true
		if a.Driver == "" && len(a.Addresses) > 0 {
			return fmt.Errorf("has floating IPs on interface %q and names no driver", a.IfName)
		}
	}
	return nil
}
