// SPDX-License-Identifier: Apache-2.0

// Package kube is the typed client of the Kubernetes objects that the agent reads and
// writes, and of the reviews of clients' tokens and rights. client-go's clientset has every
// kind of every API group: a process that imports it registers them all when it starts, and
// keeps their types in memory, on every node. This one has the kinds that it names.
package kube

import (
	"fmt"
	"net/http"
	"os"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

type (
	// Pods reads and writes the pods of one namespace. Safe for concurrent use.
	Pods = gentype.ClientWithList[*corev1.Pod, *corev1.PodList]
	// Nodes reads and writes nodes. Safe for concurrent use.
	Nodes = gentype.ClientWithList[*corev1.Node, *corev1.NodeList]
	// Events writes the events of one namespace. Safe for concurrent use.
	Events = gentype.Client[*corev1.Event]
)

// Client reads and writes Kubernetes' objects. Safe for concurrent use.
type Client struct {
	Nodes        *Nodes
	Namespaces   *gentype.ClientWithList[*corev1.Namespace, *corev1.NamespaceList]
	ServiceCIDRs *gentype.ClientWithList[*networkingv1.ServiceCIDR, *networkingv1.ServiceCIDRList]
	// NetworkPolicies is the client for all namespaces.
	NetworkPolicies            *gentype.ClientWithList[*networkingv1.NetworkPolicy, *networkingv1.NetworkPolicyList]
	TokenReviews               *gentype.Client[*authenticationv1.TokenReview]
	SubjectAccessReviews       *gentype.Client[*authorizationv1.SubjectAccessReview]
	CertificateSigningRequests *gentype.Client[*certificatesv1.CertificateSigningRequest]

	core       rest.Interface
	parameters runtime.ParameterCodec
}

// Pods returns the client of a namespace's pods. With metav1.NamespaceAll it reads the pods of
// all namespaces.
func (c *Client) Pods(namespace string) *Pods {
	return gentype.NewClientWithList("pods", c.core, c.parameters, namespace, object[corev1.Pod], object[corev1.PodList])
}

// Events returns the client of a namespace's events.
func (c *Client) Events(namespace string) *Events {
	return gentype.NewClient("events", c.core, c.parameters, namespace, object[corev1.Event])
}

func object[T any]() *T { return new(T) }

// kinds are the kinds of the client.
var kinds = map[schema.GroupVersion][]runtime.Object{
	corev1.SchemeGroupVersion: {
		&corev1.Pod{}, &corev1.PodList{}, &corev1.Node{}, &corev1.NodeList{}, &corev1.Namespace{}, &corev1.NamespaceList{}, &corev1.Event{},
	},
	networkingv1.SchemeGroupVersion:     {&networkingv1.ServiceCIDR{}, &networkingv1.ServiceCIDRList{}, &networkingv1.NetworkPolicy{}, &networkingv1.NetworkPolicyList{}},
	authenticationv1.SchemeGroupVersion: {&authenticationv1.TokenReview{}},
	authorizationv1.SchemeGroupVersion:  {&authorizationv1.SubjectAccessReview{}},
	certificatesv1.SchemeGroupVersion:   {&certificatesv1.CertificateSigningRequest{}},
}

// Protobuf returns a copy of a config that asks for protobuf, which is smaller than JSON. The API
// server has it for built-in objects only.
func Protobuf(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return config
}

// NoticeDeadConnections has connections to an API server that died end after 5 s of silence and an
// unanswered ping of 5 s; client-go's own values are 30 and 15 s, in which a node that was cut off
// answers on for addresses that others may have by now, and all nodes seem silent. client-go reads
// the environment; what is set there stays.
func NoticeDeadConnections() error {
	for _, name := range []string{"HTTP2_READ_IDLE_TIMEOUT_SECONDS", "HTTP2_PING_TIMEOUT_SECONDS"} {
		if os.Getenv(name) != "" {
			continue
		}
		if err := os.Setenv(name, "5"); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return nil
}

// NewForConfig returns a Client with connections of its own. It opens none.
func NewForConfig(config *rest.Config) (*Client, error) {
	config = rest.CopyConfig(config)
	if config.UserAgent == "" {
		config.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	connections, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("create the client of Kubernetes' objects: %w", err)
	}
	return NewForConfigAndClient(config, connections)
}

// NewForConfigAndClient returns a Client that uses the connections, which must have the
// config's credentials. It speaks protobuf where the config names no content type.
func NewForConfigAndClient(config *rest.Config, connections *http.Client) (*Client, error) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, metav1.Unversioned)
	for group, objects := range kinds {
		scheme.AddKnownTypes(group, objects...)
		metav1.AddToGroupVersion(scheme, group)
	}
	config = rest.CopyConfig(config)
	if config.ContentType == "" {
		config = Protobuf(config)
	}
	if config.RateLimiter == nil && config.QPS > 0 {
		// The groups share it.
		config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(config.QPS, config.Burst)
	}
	groups := map[schema.GroupVersion]rest.Interface{}
	for group := range kinds {
		var err error
		if groups[group], err = RESTClient(config, connections, group, scheme); err != nil {
			return nil, err
		}
	}
	core, networking, parameters := groups[corev1.SchemeGroupVersion], groups[networkingv1.SchemeGroupVersion], runtime.NewParameterCodec(scheme)
	return &Client{
		core: core, parameters: parameters,
		Nodes:           gentype.NewClientWithList("nodes", core, parameters, "", object[corev1.Node], object[corev1.NodeList]),
		Namespaces:      gentype.NewClientWithList("namespaces", core, parameters, "", object[corev1.Namespace], object[corev1.NamespaceList]),
		ServiceCIDRs:    gentype.NewClientWithList("servicecidrs", networking, parameters, "", object[networkingv1.ServiceCIDR], object[networkingv1.ServiceCIDRList]),
		NetworkPolicies: gentype.NewClientWithList("networkpolicies", networking, parameters, metav1.NamespaceAll, object[networkingv1.NetworkPolicy], object[networkingv1.NetworkPolicyList]),
		TokenReviews:    gentype.NewClient("tokenreviews", groups[authenticationv1.SchemeGroupVersion], parameters, "", object[authenticationv1.TokenReview]),
		SubjectAccessReviews: gentype.NewClient("subjectaccessreviews", groups[authorizationv1.SchemeGroupVersion], parameters, "",
			object[authorizationv1.SubjectAccessReview]),
		CertificateSigningRequests: gentype.NewClient("certificatesigningrequests", groups[certificatesv1.SchemeGroupVersion], parameters, "",
			object[certificatesv1.CertificateSigningRequest]),
	}, nil
}

// RESTClient returns a client of a group's objects, which the scheme has, that uses the
// connections.
func RESTClient(config *rest.Config, connections *http.Client, group schema.GroupVersion, scheme *runtime.Scheme) (*rest.RESTClient, error) {
	config = rest.CopyConfig(config)
	config.GroupVersion, config.APIPath = &group, "/apis"
	if group.Group == "" {
		config.APIPath = "/api"
	}
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientForConfigAndClient(config, connections)
	if err != nil {
		return nil, fmt.Errorf("create the client of %s: %w", group, err)
	}
	return client, nil
}
