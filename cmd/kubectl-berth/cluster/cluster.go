// SPDX-License-Identifier: Apache-2.0

// Package cluster is the cluster that the user chose: its clients, made only when a
// command asks for one. It does no discovery, so a command that needs one object makes one
// request.
package cluster

import (
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// Cluster is the cluster that the flags and the kubeconfig choose. Its methods read them
// when they are called, so after the command line was parsed.
type Cluster struct {
	flags     *genericclioptions.ConfigFlags
	namespace *string
}

// New returns the cluster that flags choose, and adds all of them but --namespace to
// the command's persistent flags: see [Cluster.AddNamespace].
func New(flags *genericclioptions.ConfigFlags, all *pflag.FlagSet) *Cluster {
	c := &Cluster{flags: flags, namespace: flags.Namespace}
	flags.Namespace = nil
	flags.AddFlags(all)
	flags.Namespace = c.namespace
	return c
}

// AddNamespace adds --namespace to a command about pods, claims or workloads. Others have
// no such flag, so that it is not ignored silently. everywhere: by default it is about all namespaces.
func (c *Cluster) AddNamespace(command *cobra.Command, everywhere bool) {
	usage := "Namespace of the pod, claim or workload. By default the namespace of the kubeconfig's context."
	if everywhere {
		usage = "Only this namespace. By default all."
	}
	command.Flags().StringVarP(c.namespace, "namespace", "n", "", usage)
}

// GivenNamespace returns the value of --namespace.
func (c *Cluster) GivenNamespace() string { return *c.namespace }

// Namespace returns the namespace that the user means.
func (c *Cluster) Namespace() (string, error) {
	namespace, _, err := c.flags.ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return "", fmt.Errorf("read the namespace of the kubeconfig's context: %w", err)
	}
	return namespace, nil
}

// Name returns the name of the kubeconfig's context, for people; the API server's URL where there is none.
func (c *Cluster) Name() string {
	raw, err := c.flags.ToRawKubeConfigLoader().RawConfig()
	if given := c.flags.Context; err == nil && given != nil && *given != "" {
		return *given
	}
	if err == nil && raw.CurrentContext != "" {
		return raw.CurrentContext
	}
	if config, err := c.Config(); err == nil {
		return config.Host
	}
	return ""
}

// Config returns how to reach the API server, with the user's credentials. The caller may
// modify it.
func (c *Cluster) Config() (*rest.Config, error) {
	config, err := c.flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("read the API server's address and credentials: %w", err)
	}
	config = rest.CopyConfig(config)
	config.QPS = -1 // the commands ask little, and the API server limits the rate
	return config, nil
}

// Discovery returns the client that asks which kinds the API server serves, without its
// cache on disk.
func (c *Cluster) Discovery() (discovery.DiscoveryInterface, error) {
	kinds, err := c.flags.ToDiscoveryClient()
	if err != nil {
		return nil, fmt.Errorf("create the discovery client: %w", err)
	}
	kinds.Invalidate()
	return kinds, nil
}
