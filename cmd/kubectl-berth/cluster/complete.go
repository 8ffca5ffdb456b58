// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Limits of completion: the user waits for it at the keyboard.
const (
	completes    = 2 * time.Second
	mostComplete = 500
	completePage = 2000
)

// CompletePools completes the name of one pool.
func (c *Cluster) CompletePools(command *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	return c.complete(command, listing{resource: v1alpha1.SchemeGroupVersion.WithResource("ippools")}, args, 1, begun)
}

// CompletePods completes the name of one pod.
func (c *Cluster) CompletePods(command *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	return c.complete(command, listing{resource: v1.SchemeGroupVersion.WithResource("pods"), namespaced: true}, args, 1, begun)
}

// ServiceOf returns the name of a Service if the word names one as kubectl does, and not a pod.
func ServiceOf(word string) (name string, ok bool) {
	kind, name, ok := strings.Cut(word, "/")
	return name, ok && slices.Contains([]string{"service", "services", "svc"}, strings.ToLower(kind))
}

// CompletePodOrService completes the name of one pod, or service/NAME.
func (c *Cluster) CompletePodOrService(command *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	name, ok := ServiceOf(begun)
	if !ok {
		return c.CompletePods(command, args, begun)
	}
	of := listing{resource: v1.SchemeGroupVersion.WithResource("services"), namespaced: true, prefix: strings.TrimSuffix(begun, name)}
	return c.complete(command, of, args, 1, begun)
}

// CompleteNodes completes the name of one node.
func (c *Cluster) CompleteNodes(command *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	return c.complete(command, listing{resource: v1.SchemeGroupVersion.WithResource("nodes")}, args, 1, begun)
}

// CompleteClaims completes the names of claims that are not given yet, two of them.
func (c *Cluster) CompleteClaims(command *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	return c.complete(command, listing{resource: v1alpha1.SchemeGroupVersion.WithResource("ipclaims"), namespaced: true}, args, 2, begun)
}

// CompleteNamespaces completes the value of -n.
func (c *Cluster) CompleteNamespaces(command *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	return c.complete(command, listing{resource: v1.SchemeGroupVersion.WithResource("namespaces")}, nil, 1, begun)
}

// CompleteAddresses completes addresses that somebody has.
func (c *Cluster) CompleteAddresses(command *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	return c.complete(command, addresses, args, len(args)+1, begun)
}

// CompleteAddress completes one address that somebody has.
func (c *Cluster) CompleteAddress(command *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	return c.complete(command, addresses, args, 1, begun)
}

// owners are the kinds whose names are completed after KIND/.
var owners = map[string]schema.GroupVersionResource{
	"claim": v1alpha1.SchemeGroupVersion.WithResource("ipclaims"), "ipclaim": v1alpha1.SchemeGroupVersion.WithResource("ipclaims"),
	"sts": appsv1.SchemeGroupVersion.WithResource("statefulsets"), "statefulset": appsv1.SchemeGroupVersion.WithResource("statefulsets"),
	"deploy": appsv1.SchemeGroupVersion.WithResource("deployments"), "deployment": appsv1.SchemeGroupVersion.WithResource("deployments"),
	"ds": appsv1.SchemeGroupVersion.WithResource("daemonsets"), "daemonset": appsv1.SchemeGroupVersion.WithResource("daemonsets"),
	"rs": appsv1.SchemeGroupVersion.WithResource("replicasets"), "replicaset": appsv1.SchemeGroupVersion.WithResource("replicasets"),
	"job": batchv1.SchemeGroupVersion.WithResource("jobs"), "cronjob": batchv1.SchemeGroupVersion.WithResource("cronjobs"),
}

// CompleteOwners completes the name of one pod, or KIND/NAME of a workload or claim.
func (c *Cluster) CompleteOwners(command *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	kind, _, qualified := strings.Cut(begun, "/")
	if !qualified {
		return c.CompletePods(command, args, begun)
	}
	resource, ok := owners[strings.ToLower(kind)]
	if !ok {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return c.complete(command, listing{resource: resource, namespaced: true, prefix: kind + "/"}, args, 1, begun)
}

// listing is a list of words to choose from.
type listing struct {
	resource   schema.GroupVersionResource
	namespaced bool
	// prefix stands before each name.
	prefix string
	// word returns the word for an object's name; nil: the name itself.
	word func(name string) string
}

var addresses = listing{resource: v1alpha1.SchemeGroupVersion.WithResource("floatingips"), word: func(name string) string {
	addr, err := v1alpha1.AddrOf(name)
	if err != nil {
		return "" // the CRD's validation admits no other name
	}
	return addr.String()
}}

// complete completes an argument, if the command takes another: with words that begin as the user began. It reads
// names alone, page by page. Without an answer of the cluster there is no completion.
func (c *Cluster) complete(command *cobra.Command, from listing, args []string, most int, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) >= most {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx := command.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completes)
	defer cancel()
	list, err := c.lister(from)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var fitting []string
	for options := (metav1.ListOptions{Limit: completePage}); len(fitting) < mostComplete; {
		page, err := list.List(ctx, options)
		if err != nil {
			break
		}
		for i := range page.Items {
			word := page.Items[i].Name
			if from.word != nil {
				word = from.word(word)
			}
			if word = from.prefix + word; strings.HasPrefix(word, begun) && !slices.Contains(args, word) {
				fitting = append(fitting, word)
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			break
		}
	}
	return fitting[:min(len(fitting), mostComplete)], cobra.ShellCompDirectiveNoFileComp
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
