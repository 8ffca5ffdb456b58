// SPDX-License-Identifier: Apache-2.0

// Package client is the typed client of Berth's API objects: get, list, watch
// and write for each kind, and informers. It is written by hand on client-go's
// generic client: six kinds do not need a generated clientset.
package client

import (
	"context"
	"fmt"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

type (
	// IPPools reads and writes IPPool objects. Safe for concurrent use.
	IPPools = gentype.ClientWithList[*v1alpha1.IPPool, *v1alpha1.IPPoolList]
	// IPClaims reads and writes the IPClaim objects of one namespace. Safe for
	// concurrent use.
	IPClaims = gentype.ClientWithList[*v1alpha1.IPClaim, *v1alpha1.IPClaimList]
	// FloatingIPs reads and writes FloatingIP objects. Safe for concurrent use.
	FloatingIPs = gentype.ClientWithList[*v1alpha1.FloatingIP, *v1alpha1.FloatingIPList]
	// NetworkProfiles reads and writes NetworkProfile objects. Safe for concurrent
	// use.
	NetworkProfiles = gentype.ClientWithList[*v1alpha1.NetworkProfile, *v1alpha1.NetworkProfileList]
	// BGPPeers reads and writes BGPPeer objects. Safe for concurrent use.
	BGPPeers = gentype.ClientWithList[*v1alpha1.BGPPeer, *v1alpha1.BGPPeerList]
	// NodeAssignments reads and writes NodeAssignment objects. Safe for concurrent use.
	NodeAssignments = gentype.ClientWithList[*v1alpha1.NodeAssignment, *v1alpha1.NodeAssignmentList]
)

// Client reads and writes Berth's API objects. Safe for concurrent use.
type Client struct {
	IPPools         *IPPools
	FloatingIPs     *FloatingIPs
	NetworkProfiles *NetworkProfiles
	BGPPeers        *BGPPeers
	NodeAssignments *NodeAssignments

	ipClaims func(namespace string) *IPClaims
}

// IPClaims returns the client of a namespace's IPClaims. With metav1.NamespaceAll it reads the
// claims of all namespaces.
func (c *Client) IPClaims(namespace string) *IPClaims { return c.ipClaims(namespace) }

// NewForConfig returns a Client with connections of its own. It opens none.
func NewForConfig(config *rest.Config) (*Client, error) {
	config = rest.CopyConfig(config)
	if config.UserAgent == "" {
		config.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	connections, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("create the client of %s: %w", v1alpha1.SchemeGroupVersion, err)
	}
	return NewForConfigAndClient(config, connections)
}

// NewForConfigAndClient returns a Client that uses the connections, which must have the
// config's credentials.
func NewForConfigAndClient(config *rest.Config, connections *http.Client) (*Client, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register Berth's API types: %w", err)
	}
	metav1.AddToGroupVersion(scheme, metav1.Unversioned)

	config = rest.CopyConfig(config)
	config.GroupVersion = &v1alpha1.SchemeGroupVersion
	config.APIPath = "/apis"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	// Custom resources are served as JSON and CBOR only.
	config.ContentType = runtime.ContentTypeJSON
	config.AcceptContentTypes = runtime.ContentTypeJSON
	restClient, err := rest.RESTClientForConfigAndClient(config, connections)
	if err != nil {
		return nil, fmt.Errorf("create the client of %s: %w", v1alpha1.SchemeGroupVersion, err)
	}

	parameters := runtime.NewParameterCodec(scheme)
	return &Client{
		IPPools:         gentype.NewClientWithList("ippools", restClient, parameters, "", object[v1alpha1.IPPool], object[v1alpha1.IPPoolList]),
		FloatingIPs:     gentype.NewClientWithList("floatingips", restClient, parameters, "", object[v1alpha1.FloatingIP], object[v1alpha1.FloatingIPList]),
		NetworkProfiles: gentype.NewClientWithList("networkprofiles", restClient, parameters, "", object[v1alpha1.NetworkProfile], object[v1alpha1.NetworkProfileList]),
		BGPPeers:        gentype.NewClientWithList("bgppeers", restClient, parameters, "", object[v1alpha1.BGPPeer], object[v1alpha1.BGPPeerList]),
		NodeAssignments: gentype.NewClientWithList("nodeassignments", restClient, parameters, "", object[v1alpha1.NodeAssignment], object[v1alpha1.NodeAssignmentList]),
		ipClaims: func(namespace string) *IPClaims {
			return gentype.NewClientWithList("ipclaims", restClient, parameters, namespace, object[v1alpha1.IPClaim], object[v1alpha1.IPClaimList])
		},
	}, nil
}

func object[T any]() *T { return new(T) }

// ListWatcher has the methods of a typed client that an informer uses.
type ListWatcher[L runtime.Object] interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// NewIPPoolInformer returns an informer of all pools. The caller runs it.
func NewIPPoolInformer(pools *IPPools, resync time.Duration) cache.SharedIndexInformer {
	return NewInformer[*v1alpha1.IPPoolList](pools, &v1alpha1.IPPool{}, resync, cache.Indexers{})
}

// NewIPClaimInformer returns an informer of the claims of all namespaces. The caller runs
// it.
func NewIPClaimInformer(api *Client, resync time.Duration) cache.SharedIndexInformer {
	return NewInformer[*v1alpha1.IPClaimList](api.IPClaims(metav1.NamespaceAll), &v1alpha1.IPClaim{}, resync, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
}

// NewFloatingIPInformer returns an informer of all FloatingIPs. The caller runs it.
func NewFloatingIPInformer(ips *FloatingIPs, resync time.Duration, indexers cache.Indexers) cache.SharedIndexInformer {
	return NewInformer[*v1alpha1.FloatingIPList](ips, &v1alpha1.FloatingIP{}, resync, indexers)
}

// NewInformer returns an informer of all objects that a typed client lists. The caller runs it.
func NewInformer[L runtime.Object](client ListWatcher[L], example runtime.Object, resync time.Duration, indexers cache.Indexers) cache.SharedIndexInformer {
	return cache.NewSharedIndexInformer(NewSource[L](client), example, resync, indexers)
}

// NewSource lets a reflector list and watch with a typed client.
func NewSource[L runtime.Object](client ListWatcher[L]) cache.ListerWatcher {
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return client.Watch(ctx, options)
		},
	}
	return cache.ToListWatcherWithWatchListSemantics(lw, client)
}

// NewSourceOf is NewSource for the object with a name only: the API server sends no other objects.
func NewSourceOf[L runtime.Object](client ListWatcher[L], name string) cache.ListerWatcher {
	return NewSource(Selecting[L]{client, fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()})
}

// Selecting lists and watches the objects that a field selector selects.
type Selecting[L runtime.Object] struct {
	ListWatcher[L]

	Fields string
}

// List implements ListWatcher.
func (s Selecting[L]) List(ctx context.Context, options metav1.ListOptions) (L, error) {
	options.FieldSelector = s.Fields
	return s.ListWatcher.List(ctx, options)
}

// Watch implements ListWatcher.
func (s Selecting[L]) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.FieldSelector = s.Fields
	return s.ListWatcher.Watch(ctx, options)
}
