// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/cmd/internal/kube"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/wakeup"
)

// objects watches all BGPPeers and the labels of one node.
type objects struct {
	name         string
	nodes, peers cache.SharedIndexInformer
	changed      wakeup.Signal
}

func watchObjects(nodes *kube.Nodes, peers *client.BGPPeers, name string) (*objects, error) {
	w := &objects{
		name:    name,
		nodes:   cache.NewSharedIndexInformer(client.NewSourceOf[*corev1.NodeList](nodes, name), &corev1.Node{}, 0, cache.Indexers{}),
		peers:   client.NewInformer[*v1alpha1.BGPPeerList](peers, &v1alpha1.BGPPeer{}, 0, cache.Indexers{}),
		changed: wakeup.New(),
	}
	if err := w.nodes.SetTransform(trimNode); err != nil {
		return nil, fmt.Errorf("prepare the watch of the node: %w", err)
	}
	for kind, informer := range map[string]cache.SharedIndexInformer{"the node": w.nodes, "BGPPeers": w.peers} {
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { w.changed.Send() },
			UpdateFunc: func(_, _ any) { w.changed.Send() },
			DeleteFunc: func(any) { w.changed.Send() },
		})
		if err != nil {
			return nil, fmt.Errorf("prepare the watch of %s: %w", kind, err)
		}
	}
	return w, nil
}

// trimNode keeps the labels.
func trimNode(obj any) (any, error) {
	if node, ok := obj.(*corev1.Node); ok {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name, ResourceVersion: node.ResourceVersion, Labels: node.Labels}}, nil
	}
	return obj, nil
}

// run calls configure with the objects, first when all are known, and after changes. A Node that is
// deleted keeps its labels: its addresses are carried all the same.
func (w *objects) run(ctx context.Context, configure func(peers []*v1alpha1.BGPPeer, labels map[string]string)) {
	var group sync.WaitGroup
	defer group.Wait()
	for _, informer := range []cache.SharedIndexInformer{w.nodes, w.peers} {
		group.Go(func() { informer.RunWithContext(ctx) })
	}
	if !cache.WaitForCacheSync(ctx.Done(), w.nodes.HasSynced, w.peers.HasSynced) {
		return
	}
	var labels map[string]string
	known := false
	for {
		if obj, exists, err := w.nodes.GetStore().GetByKey(w.name); err == nil && exists {
			if node, ok := obj.(*corev1.Node); ok {
				labels, known = node.Labels, true
			}
		}
		var peers []*v1alpha1.BGPPeer
		for _, obj := range w.peers.GetStore().List() {
			if peer, ok := obj.(*v1alpha1.BGPPeer); ok {
				peers = append(peers, peer)
			}
		}
		if known {
			configure(peers, labels)
		}
		select {
		case <-ctx.Done():
			return
		case <-w.changed:
		}
	}
}
