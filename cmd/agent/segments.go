// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/answerer"
	"github.com/berth-dev/berth/agent/answering"
	"github.com/berth-dev/berth/agent/answering/agentkey"
	"github.com/berth-dev/berth/agent/answering/datagram"
	"github.com/berth-dev/berth/agent/answering/segment"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cmd/internal/kube"
	"github.com/berth-dev/berth/cni/atomicfile"
)

// keyInterval is how often the key is read: the kubelet brings a Secret's files within two minutes.
const keyInterval = 10 * time.Second

// apiPatience is how long the API server is waited for.
const apiPatience = 2 * time.Second

// segments are the networks of the node's links, with the key of the cluster.
type segments struct {
	dir string
	// clusterFile keeps the cluster's ID for a start without the API server.
	clusterFile string
	namespaces  *kube.Namespaces
	keys        atomic.Pointer[agentkey.Holder]
	// unicast is nil where the node has no InternalIP.
	unicast *segment.Unicast
	// said is the last error.
	said string
}

// newSegments reads the key once, so that the agent's first words are heard. Without the API server it waits for a moment.
func newSegments(ctx context.Context, o *Options, namespaces *kube.Namespaces) *segments {
	s := &segments{dir: o.AgentKeyDir, clusterFile: state.ClusterFileBeside(o.StateFile), namespaces: namespaces}
	s.look(ctx)
	if addr, err := netip.ParseAddr(o.NodeIP); err == nil {
		if s.unicast, err = segment.OpenUnicast(ctx, addr.Unmap(), segment.Options{Codec: s.codec}); err != nil {
			klog.FromContext(ctx).Error(err, "Other nodes reach this agent on the pools' networks only")
		}
	}
	return s
}

func (s *segments) codec() *datagram.Codec {
	if keys := s.keys.Load(); keys != nil {
		return keys.Codec()
	}
	return nil
}

func (s *segments) open(link int) (answerer.Segment, error) {
	opened, err := segment.Open(link, segment.Options{Codec: s.codec, Unicast: s.unicast})
	if err != nil {
		return nil, err
	}
	return opened, nil
}

// hear calls heard with the messages that other nodes send to this node's InternalIP, until ctx ends.
func (s *segments) hear(ctx context.Context, heard func(answering.Message)) {
	if s.unicast == nil {
		return
	}
	err := s.unicast.Run(ctx, heard)
	if err = errors.Join(err, s.unicast.Close()); err != nil {
		klog.FromContext(ctx).Error(err, "Other nodes reach this agent on the pools' networks only")
	}
}

// run reads the key again and again: it may come later, and is replaced. Without one nodes do not hear each other.
func (s *segments) run(ctx context.Context) error {
	wait.UntilWithContext(ctx, s.look, keyInterval)
	return nil
}

// look reads the key, and tells of each new error once.
func (s *segments) look(ctx context.Context) {
	text := ""
	if err := s.refresh(ctx); err != nil && ctx.Err() == nil {
		text = err.Error()
		if text != s.said {
			klog.FromContext(ctx).Error(err, "This agent does not hear the others, or not by the newest key, will try again")
		}
	}
	s.said = text
}

func (s *segments) refresh(ctx context.Context) error {
	keys := s.keys.Load()
	if keys == nil {
		cluster, err := s.cluster(ctx)
		if err != nil {
			return err
		}
		keys = agentkey.NewHolder(s.dir, cluster)
	}
	if err := keys.Refresh(); err != nil {
		return err
	}
	s.keys.Store(keys)
	return nil
}

// cluster returns the UID of the namespace kube-system, which names the cluster: a copy of a cluster has its Secrets.
func (s *segments) cluster(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, apiPatience)
	defer cancel()
	namespace, err := s.namespaces.Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		if known, unread := os.ReadFile(s.clusterFile); unread == nil && len(known) > 0 {
			return string(known), nil
		}
		return "", fmt.Errorf("get the UID of namespace %s: %w", metav1.NamespaceSystem, err)
	}
	uid := string(namespace.UID)
	if err := atomicfile.Replace(s.clusterFile, strings.NewReader(uid), 0o600); err != nil {
		return "", fmt.Errorf("keep the cluster's ID: %w", err)
	}
	return uid, nil
}
