// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/cmd/internal/kube"
	"github.com/berth-dev/berth/ipam/client"
)

// clients are the typed clients of the agent. They share connections: each node has one to the
// API server, beside that for the reviews of those who ask for metrics.
type clients struct {
	core     *kube.Client
	berth    *client.Client
	networks *rest.RESTClient
}

func newClients(config *rest.Config) (*clients, error) {
	connections, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("prepare connections to the API server: %w", err)
	}
	c := &clients{}
	if c.core, err = kube.NewForConfigAndClient(config, connections); err != nil {
		return nil, err
	}
	if c.berth, err = client.NewForConfigAndClient(config, connections); err != nil {
		return nil, err
	}
	if c.networks, err = newNetworkClient(config, connections); err != nil {
		return nil, fmt.Errorf("create the client of NetworkAttachmentDefinitions: %w", err)
	}
	return c, nil
}

func newNetworkClient(config *rest.Config, connections *http.Client) (*rest.RESTClient, error) {
	scheme := runtime.NewScheme()
	if err := nadv1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.GroupVersion, config.APIPath = &nadv1.SchemeGroupVersion, "/apis"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	return rest.RESTClientForConfigAndClient(config, connections)
}

// definition reads a NetworkAttachmentDefinition, whose kind the cluster need not have.
func (c *clients) definition(ctx context.Context, namespace, name string) (*nadv1.NetworkAttachmentDefinition, error) {
	definition := &nadv1.NetworkAttachmentDefinition{}
	err := c.networks.Get().Namespace(namespace).Resource("network-attachment-definitions").Name(name).Do(ctx).Into(definition)
	return definition, err
}

// Time limits after which the client drops a silent connection. Only then does a node
// that was cut off learn that other nodes may have its addresses; client-go's own
// values are 30 and 15 seconds.
const (
	envReadIdle, readIdleSeconds = "HTTP2_READ_IDLE_TIMEOUT_SECONDS", "5"
	envPing, pingSeconds         = "HTTP2_PING_TIMEOUT_SECONDS", "5"
	dialTimeout                  = 3 * time.Second
)

func newConfig(kubeconfig string) (*rest.Config, error) {
	for env, value := range map[string]string{envReadIdle: readIdleSeconds, envPing: pingSeconds} {
		if os.Getenv(env) != "" {
			continue
		}
		if err := os.Setenv(env, value); err != nil {
			return nil, fmt.Errorf("set %s: %w", env, err)
		}
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	config.UserAgent = "berth-agent"
	config.QPS, config.Burst = 100, 200
	config.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext
	return config, nil
}
