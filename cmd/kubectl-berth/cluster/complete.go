// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"

	"github.com/berth-dev/berth/cmd/kubectl-berth/target"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Limits of completion: the user waits for it at the keyboard.
const (
	completes    = 2 * time.Second
	mostComplete = 500
	completePage = 2000
)

// Completes completes the names of a kind, and after KIND/ those of that kind, if the arguments may be one more; nil: they may.
func (c *Cluster) Completes(bare string, may cobra.PositionalArgs) cobra.CompletionFunc {
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
		return c.complete(command, resource, namespaced, prefix, args, begun), cobra.ShellCompDirectiveNoFileComp
	}
}

// complete returns words that begin as the user began, each with a prefix. It reads names alone, page by page. Without an answer of
// the cluster there is no completion.
func (c *Cluster) complete(command *cobra.Command, resource schema.GroupVersionResource, namespaced bool, prefix string, args []string, begun string) []string {
	ctx := command.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completes)
	defer cancel()
	config, err := c.Config()
	if err != nil {
		return nil
	}
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return nil
	}
	list := metadata.ResourceInterface(client.Resource(resource))
	if namespaced {
		namespace, err := c.Namespace()
		if err != nil {
			return nil
		}
		list = client.Resource(resource).Namespace(namespace)
	}
	var fitting []string
	for options := (metav1.ListOptions{Limit: completePage}); len(fitting) < mostComplete; {
		page, err := list.List(ctx, options)
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
