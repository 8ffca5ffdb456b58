// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/agent/traffic"
)

// noteTraffic remembers what the links of floating IPs have counted, so that it can be said later
// when they last did.
func (r *records) noteTraffic(ctx context.Context, all []*state.Container) {
	containers := map[string]bool{}
	var reader *traffic.Reader
	for _, record := range all {
		containers[record.ContainerID] = true
		if record.Phase != state.Added || len(record.Addresses()) == 0 {
			continue
		}
		if reader == nil {
			var err error
			if reader, err = traffic.Read(); err != nil {
				klog.FromContext(ctx).V(2).Info("Cannot see what the links of pods have counted", "err", err)
				return
			}
		}
		for i := range record.Attachments {
			r.trafficOf(reader, record, i)
		}
	}
	r.traffic.Keep(containers)
}

// trafficOf returns what the links with the floating IPs of an attachment have counted, and
// remembers it.
func (r *records) trafficOf(reader *traffic.Reader, record *state.Container, i int) (all []inquiry.InspectedTraffic) {
	if len(record.Attachments[i].Addresses) == 0 {
		return nil
	}
	for _, c := range nettype.Of(record.Attachments[i].Driver).Carriers(nettype.InterfaceOf(record, i)) {
		counters, err := reader.Of(record.NetNS, c.Link, c.End)
		one := inquiry.InspectedTraffic{Link: c.Link}
		if err != nil {
			one.Error = err.Error()
		} else {
			one = r.traffic.Note(traffic.Key{ContainerID: record.ContainerID, Link: c.Link}, counters, time.Now())
		}
		one.Addresses = c.Addresses
		all = append(all, one)
	}
	return all
}

// inspectTraffic adds to a container what its links have counted and, if peers, with whom the node
// tracks connections of its floating IPs.
func (r *records) inspectTraffic(reader *traffic.Reader, record *state.Container, c *inquiry.InspectedContainer, peers bool) {
	if reader == nil || record.Phase != state.Added {
		return
	}
	for i := range record.Attachments {
		c.Interfaces[i].Traffic = r.trafficOf(reader, record, i)
	}
	addrs := addressesOf(record)
	if !peers || len(addrs) == 0 {
		return
	}
	err := passesNode(record)
	if err == nil {
		c.Peers, c.MorePeers, err = traffic.Peers(addrs)
	}
	if err != nil {
		c.PeersUnknown = err.Error()
	}
}

// errPast is returned for an interface whose packets the node need not see.
var errPast = errors.New("its packets can go past the node, which then tracks no connections of them")

// passesNode returns an error unless all packets of a container's floating IPs pass the node.
func passesNode(record *state.Container) error {
	for i := range record.Attachments {
		attachment := &record.Attachments[i]
		if len(attachment.Addresses) == 0 {
			continue
		}
		network, err := chain.Parse(attachment.Network)
		if err != nil {
			return fmt.Errorf("read the network of interface %s: %w", attachment.IfName, err)
		}
		past, err := nettype.Of(attachment.Driver).Detached(network)
		if err == nil && past {
			err = errPast
		}
		if err != nil {
			return fmt.Errorf("interface %s: %w", attachment.IfName, err)
		}
	}
	return nil
}
