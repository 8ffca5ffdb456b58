// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/berth-dev/berth/agent/answerer"
	"github.com/berth-dev/berth/agent/inquiry"
)

// hearingPatience is how long the links are waited for: one is busy for as long as its kernel is.
const hearingPatience = 2 * time.Second

func (a *Agent) hearings(ctx context.Context) []answerer.Hearing {
	if a.answerer == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, hearingPatience)
	defer cancel()
	return a.answerer.Hearings(ctx)
}

// inspectSegments says all that the node hears of others.
func (a *Agent) inspectSegments(ctx context.Context) []inquiry.InspectedSegment {
	var all []inquiry.InspectedSegment
	for _, h := range a.hearings(ctx) {
		s := inquiry.InspectedSegment{Link: linkName(h.Link), Since: h.Since, Error: errorText(h.Err), Nodes: []inquiry.InspectedNeighbour{}}
		for _, n := range h.Neighbours {
			s.Nodes = append(s.Nodes, inquiry.InspectedNeighbour{Name: n.Node.Name, UID: n.Node.UID, MAC: n.MAC, Heard: n.Heard})
		}
		all = append(all, s)
	}
	return all
}

// hears says which nodes are heard: there may be thousands, and each of them is asked.
func (a *Agent) hears(ctx context.Context) []inquiry.Hears {
	var all []inquiry.Hears
	now := time.Now()
	for _, h := range a.hearings(ctx) {
		one := inquiry.Hears{Link: linkName(h.Link), Seconds: int64(now.Sub(h.Since).Seconds()), Error: errorText(h.Err), Nodes: []string{}}
		for _, n := range h.Neighbours {
			// A machine may have taken over the name of another.
			if now.Sub(n.Heard) <= inquiry.HeardLately && !slices.Contains(one.Nodes[max(0, len(one.Nodes)-1):], n.Node.Name) {
				one.Nodes = append(one.Nodes, n.Node.Name)
			}
		}
		all = append(all, one)
	}
	return all
}

// linkName returns the name of a link, or its index where it is gone.
func linkName(index int) string {
	link, err := net.InterfaceByIndex(index)
	if err != nil {
		return strconv.Itoa(index)
	}
	return link.Name
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
