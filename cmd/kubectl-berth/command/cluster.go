// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"

	kubeclient "github.com/berth-dev/berth/cmd/internal/kube"
	"github.com/berth-dev/berth/cmd/kubectl-berth/target"
	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
)

// Cluster is the cluster that the flags and the kubeconfig choose. Its methods read them
// when they are called, so after the command line was parsed. It does no discovery, so a
// command that needs one object makes one request.
type Cluster struct {
	flags     *genericclioptions.ConfigFlags
	namespace *string
}

// NewCluster returns the cluster that kubectl's flags choose, and adds all of them but --namespace
// to the command's persistent flags: commands about pods, claims or workloads have that, and others
// have no such flag, so that it is not ignored silently.
func NewCluster(all *pflag.FlagSet) *Cluster {
	flags := genericclioptions.NewConfigFlags(true)
	c := &Cluster{flags: flags, namespace: flags.Namespace}
	flags.Namespace = nil
	flags.AddFlags(all)
	flags.Namespace = c.namespace
	return c
}

// addNamespace adds --namespace. everywhere: its default is all namespaces.
func (c *Cluster) addNamespace(flags *pflag.FlagSet, everywhere bool) {
	usage := "Namespace of the pod, claim or workload. By default the namespace of the kubeconfig's context."
	if everywhere {
		usage = "Only this namespace. By default all."
	}
	flags.StringVarP(c.namespace, "namespace", "n", "", usage)
}

// Name is that of the kubeconfig's context, for people; where there is none the API server's URL.
func (c *Cluster) Name() string {
	raw, err := c.flags.ToRawKubeConfigLoader().RawConfig()
	if given := c.flags.Context; err == nil && given != nil && *given != "" {
		return *given
	}
	if err == nil && raw.CurrentContext != "" {
		return raw.CurrentContext
	}
	if config, err := c.flags.ToRESTConfig(); err == nil {
		return config.Host
	}
	return ""
}

// Discovery returns the client that asks for the kinds, without its cache on disk.
func (c *Cluster) Discovery() (discovery.DiscoveryInterface, error) {
	kinds, err := c.flags.ToDiscoveryClient()
	if err != nil {
		return nil, fmt.Errorf("create the discovery client: %w", err)
	}
	kinds.Invalidate()
	return kinds, nil
}

// connect makes the clients. It asks the API server nothing.
func (c *Call) connect(namespaced bool) error {
	config, err := c.flags.ToRESTConfig()
	if err != nil {
		return fmt.Errorf("read the API server's address and credentials: %w", err)
	}
	config.QPS = -1 // the commands ask little, and the API server limits the rate
	c.Config = config
	if namespaced {
		if c.Namespace, _, err = c.flags.ToRawKubeConfigLoader().Namespace(); err != nil {
			return fmt.Errorf("read the namespace of the kubeconfig's context: %w", err)
		}
		if err := c.place(); err != nil {
			return err
		}
	}
	var errs [4]error
	c.Berth, errs[0] = client.NewForConfig(config)
	c.Kube, errs[1] = kubernetes.NewForConfig(kubeclient.Protobuf(config))
	c.Dynamic, errs[2] = dynamic.NewForConfig(config)
	c.Metadata, errs[3] = metadata.NewForConfig(config)
	return errors.Join(errs[:]...)
}

const usualNamespace = "berth-system"

// system returns the namespace of Berth's programs: the given one, or the agents' DaemonSet's.
func (c *Call) system(ctx context.Context) (string, error) {
	if c.given != "" {
		return c.given, c.Require(ctx, &target.Target{Kind: "Namespace", Name: c.given})
	}
	list, err := c.Kube.AppsV1().DaemonSets(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: agentpod.Selector})
	switch {
	case apierrors.IsForbidden(err):
		return usualNamespace, nil
	case err != nil:
		return "", fmt.Errorf("look for the agents' DaemonSet: %w", err)
	}
	var all []string
	for i := range list.Items {
		all = append(all, list.Items[i].Namespace)
	}
	slices.Sort(all)
	switch all = slices.Compact(all); len(all) {
	case 0:
		return usualNamespace, nil
	case 1:
		return all[0], nil
	}
	return "", fmt.Errorf("the namespaces %s have agents of Berth: name one with --berth-namespace", strings.Join(all, ", "))
}

// Limits of completion: the user waits for it at the keyboard.
const (
	completionTime = 2 * time.Second
	mostComplete   = 500
	completionPage = 2000
)

// completes offers names of a kind, or after KIND/ of that one, if there may be one more argument.
func (c *Cluster) completes(bare string, may cobra.PositionalArgs) cobra.CompletionFunc {
	return func(command *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		kind, prefix := bare, ""
		if word, _, qualified := strings.Cut(begun, "/"); qualified {
			kind, _ = target.KindOf(word)
			prefix = word + "/"
		}
		resource, namespaced, known := target.Resource(kind)
		// A command of two arguments takes no single one.
		full := may != nil && may(command, append(slices.Clone(args), begun)) != nil && may(command, append(slices.Clone(args), begun, begun)) != nil
		if !known || full {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx := command.Context()
		if ctx == nil {
			ctx = context.Background()
		}
		return c.complete(ctx, resource, namespaced, prefix, args, begun), cobra.ShellCompDirectiveNoFileComp
	}
}

// complete returns words that begin as the user began, each with a prefix. It reads names alone,
// page by page. Without an answer of the cluster there is no completion.
func (c *Cluster) complete(ctx context.Context, resource schema.GroupVersionResource, namespaced bool, prefix string, args []string, begun string) (fitting []string) {
	ctx, cancel := context.WithTimeout(ctx, completionTime)
	defer cancel()
	call := Call{Cluster: c}
	if call.connect(namespaced) != nil {
		return nil
	}
	for options := (metav1.ListOptions{Limit: completionPage}); len(fitting) < mostComplete; {
		page, err := call.objects(resource, call.Namespace).List(ctx, options)
		if err != nil {
			break
		}
		for i := range page.Items {
			word := page.Items[i].Name
			if addr, err := v1alpha1.AddrOf(word); err == nil && resource.Resource == "floatingips" {
				word = addr.String()
			}
			if word = prefix + word; strings.HasPrefix(word, begun) && !slices.Contains(args, word) {
				fitting = append(fitting, word)
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			break
		}
	}
	return fitting[:min(len(fitting), mostComplete)]
}
