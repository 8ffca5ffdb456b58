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
		return c.complete(command, listing{resource, namespaced, prefix}, args, begun), cobra.ShellCompDirectiveNoFileComp
	}
}

// listing is a list of words to choose from.
type listing struct {
	resource   schema.GroupVersionResource
	namespaced bool
	// prefix stands before each name.
	prefix string
}

// complete returns words that begin as the user began. It reads names alone, page by page. Without an answer of the cluster
// there is no completion.
func (c *Cluster) complete(command *cobra.Command, from listing, args []string, begun string) []string {
	ctx := command.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completes)
	defer cancel()
	list, err := c.lister(from)
	if err != nil {
		return nil
	}
	var fitting []string
	for options := (metav1.ListOptions{Limit: completePage}); len(fitting) < mostComplete; {
		page, err := list.List(ctx, options)
		if err != nil {
			break
		}
		for i := range page.Items {
			word := page.Items[i].Name
			if addr, err := v1alpha1.AddrOf(word); err == nil && from.resource.Resource == "floatingips" {
				word = addr.String()
			}
			if word = from.prefix + word; strings.HasPrefix(word, begun) && !slices.Contains(args, word) {
				fitting = append(fitting, word)
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			break
		}
	}
	return fitting[:min(len(fitting), mostComplete)]
}

// lister lists the names of objects.
func (c *Cluster) lister(from listing) (metadata.ResourceInterface, error) {
	config, err := c.Config()
	if err != nil {
		return nil, err
	}
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	if !from.namespaced {
		return client.Resource(from.resource), nil
	}
	namespace, err := c.Namespace()
	if err != nil {
		return nil, err
	}
	return client.Resource(from.resource).Namespace(namespace), nil
}
