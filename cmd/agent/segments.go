// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/answerer"
	"github.com/berth-dev/berth/agent/answering"
	"github.com/berth-dev/berth/agent/answering/datagram"
	"github.com/berth-dev/berth/agent/answering/segment"
	"github.com/berth-dev/berth/agent/certificate"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// segments are the networks of the node's links, with the node's certificate.
type segments struct {
	self        answering.Node
	certificate *certificate.Keeper
	// unicast is nil where the node has no InternalIP.
	unicast *segment.Unicast
	expired rate.Sometimes
}

func newSegments(ctx context.Context, o *Options, self answering.Node, requests certificate.Requests) *segments {
	s := &segments{
		self: self,
		certificate: certificate.New(ctx, certificate.Options{
			Bundle: o.AgentCAFile, File: state.CertificateFileBeside(o.StateFile), Node: self, Requests: requests,
		}),
		expired: rate.Sometimes{Interval: time.Hour},
	}
	if addr, err := netip.ParseAddr(o.NodeIP); err == nil {
		if s.unicast, err = segment.OpenUnicast(ctx, addr.Unmap(), s.options()); err != nil {
			klog.FromContext(ctx).Error(err, "Other nodes reach this agent on the pools' networks only")
		}
	}
	return s
}

func (s *segments) options() segment.Options {
	return segment.Options{Codec: s.certificate.Codec, Answers: wire.Answers, Unicast: s.unicast, Refused: s.refused}
}

// refused tells of certificates that have ended: either node may have a wrong clock. The rest is of
// strangers.
func (s *segments) refused(err error) {
	if errors.Is(err, datagram.ErrExpired) {
		s.expired.Do(func() {
			klog.Background().Error(err, "Does not believe a message: the clock of this node is wrong, or that of the other, or the API server was away for weeks")
		})
	}
}

func (s *segments) open(link int) (answerer.Segment, error) {
	opened, err := segment.Open(link, s.options())
	if err != nil {
		return nil, err
	}
	return opened, nil
}

// hear calls heard with the messages that other nodes send to this node's InternalIP, until ctx
// ends.
func (s *segments) hear(ctx context.Context, heard func(answering.Message)) {
	if s.unicast == nil {
		return
	}
	err := s.unicast.Run(ctx, heard)
	if err = errors.Join(err, s.unicast.Close()); err != nil {
		klog.FromContext(ctx).Error(err, "Other nodes reach this agent on the pools' networks only")
	}
}

// self returns this node. Its UID is a claim of the agent's own token, since agents have no right
// to get Nodes; it is empty where the agent has another kind of credentials.
func self(o *Options, config *rest.Config) answering.Node {
	return answering.Node{Name: o.NodeName, UID: nodeUID(config.BearerToken, o.NodeName)}
}

// nodeUID returns the UID of the node for whose pod a token of a ServiceAccount was made
// (KEP-4193), empty where it says none. The signature is not verified: it is the agent's own token.
func nodeUID(token, node string) string {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return ""
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return ""
	}
	var claims struct {
		Kubernetes struct {
			Node struct {
				Name string `json:"name"`
				UID  string `json:"uid"`
			} `json:"node"`
		} `json:"kubernetes.io"`
	}
	if err := json.Unmarshal(payload, &claims); err != nil || claims.Kubernetes.Node.Name != node {
		return ""
	}
	return claims.Kubernetes.Node.UID
}
