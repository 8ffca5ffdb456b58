// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/policy/cluster"
	"github.com/berth-dev/berth/cmd/internal/kube"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
)

// clients are the typed clients of the agent. They share connections: each node has one to the
// API server, and another for reviews of clients that ask for metrics.
type clients struct {
	core     *kube.Client
	berth    *client.Client
	networks *rest.RESTClient
	// clusterPolicies are of a kind that the cluster need not have; the metadata of its
	// CustomResourceDefinition says whether it has.
	clusterPolicies           *gentype.ClientWithList[*policyv1alpha2.ClusterNetworkPolicy, *policyv1alpha2.ClusterNetworkPolicyList]
	customResourceDefinitions metadata.Getter
	// reachable returns an error where the API server answers nothing.
	reachable func(ctx context.Context) error
}

// newClients sets limits of time and rates in the config.
func newClients(config *rest.Config) (*clients, error) {
	if err := kube.NoticeDeadConnections(); err != nil {
		return nil, err
	}
	config.QPS, config.Burst = 100, 200
	config.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext
	connections, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("prepare connections to the API server: %w", err)
	}
	c := &clients{}
	if c.reachable, err = apiReachable(config); err != nil {
		return nil, err
	}
	if c.core, err = kube.NewForConfigAndClient(config, connections); err != nil {
		return nil, err
	}
	if c.berth, err = client.NewForConfigAndClient(config, connections); err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(nadv1.AddToScheme(scheme), policyv1alpha2.Install(scheme)); err != nil {
		return nil, fmt.Errorf("register the kinds that a cluster need not have: %w", err)
	}
	if c.networks, err = kube.RESTClient(config, connections, nadv1.SchemeGroupVersion, scheme); err != nil {
		return nil, err
	}
	policies, err := kube.RESTClient(config, connections, schema.GroupVersion(policyv1alpha2.GroupVersion), scheme)
	if err != nil {
		return nil, err
	}
	c.clusterPolicies = gentype.NewClientWithList("clusternetworkpolicies", policies, runtime.NewParameterCodec(scheme), "",
		func() *policyv1alpha2.ClusterNetworkPolicy { return &policyv1alpha2.ClusterNetworkPolicy{} },
		func() *policyv1alpha2.ClusterNetworkPolicyList { return &policyv1alpha2.ClusterNetworkPolicyList{} })
	about, err := metadata.NewForConfigAndClient(config, connections)
	if err != nil {
		return nil, fmt.Errorf("create the client of metadata: %w", err)
	}
	c.customResourceDefinitions = about.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	return c, nil
}

// newPolicyCluster returns the objects of the cluster that network policies need on a node.
func newPolicyCluster(clients *clients, node string) *cluster.Cluster {
	return cluster.New(cluster.Options{
		Node:                      node,
		NetworkPolicies:           client.NewSource(clients.core.NetworkPolicies),
		ClusterPolicies:           client.NewSource(clients.clusterPolicies),
		CustomResourceDefinitions: client.NewSource(clients.customResourceDefinitions),
		Namespaces:                client.NewSource(clients.core.Namespaces),
		Pods:                      client.NewSource(clients.core.Pods(metav1.NamespaceAll)),
		FloatingIPs:               client.NewSource[*v1alpha1.FloatingIPList](clients.berth.FloatingIPs),
		Nodes:                     client.NewSource(clients.core.Nodes),
		Pod: func(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
			return clients.core.Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		Namespace: func(ctx context.Context, name string) (*corev1.Namespace, error) {
			return clients.core.Namespaces.Get(ctx, name, metav1.GetOptions{})
		},
	})
}

// hostPortsForbidden asks the API server why a namespace forbids its pods host ports.
func (c *clients) hostPortsForbidden(ctx context.Context, name string) (why string, err error) {
	namespace, err := c.core.Namespaces.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("get namespace %s: %w", name, err)
	}
	return podinfo.HostPortsForbidden(namespace), nil
}

// definition reads a NetworkAttachmentDefinition, whose kind the cluster need not have.
func (c *clients) definition(ctx context.Context, namespace, name string) (*nadv1.NetworkAttachmentDefinition, error) {
	definition := &nadv1.NetworkAttachmentDefinition{}
	err := c.networks.Get().Namespace(namespace).Resource("network-attachment-definitions").Name(name).Do(ctx).Into(definition)
	return definition, err
}

// dialTimeout limits how long a connection to the API server takes.
const dialTimeout = 3 * time.Second
