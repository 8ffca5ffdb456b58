// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Limits of completion: the user waits for it at the keyboard.
const (
	completes    = 2 * time.Second
	mostComplete = 500
)

// CompletePools completes the name of one pool.
func (c *Cluster) CompletePools(command *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	return complete(command, args, 1, begun, func(ctx context.Context, options metav1.ListOptions) ([]string, error) {
		berth, err := c.Berth()
		if err != nil {
			return nil, err
		}
		list, err := berth.IPPools.List(ctx, options)
		if err != nil {
			return nil, err
		}
		var names []string
		for i := range list.Items {
			names = append(names, list.Items[i].Name)
		}
		return names, nil
	})
}

// CompletePods completes the name of one pod.
func (c *Cluster) CompletePods(command *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	return complete(command, args, 1, begun, func(ctx context.Context, options metav1.ListOptions) ([]string, error) {
		namespace, err := c.Namespace()
		if err != nil {
			return nil, err
		}
		kube, err := c.Kube()
		if err != nil {
			return nil, err
		}
		list, err := kube.CoreV1().Pods(namespace).List(ctx, options)
		if err != nil {
			return nil, err
		}
		var names []string
		for i := range list.Items {
			names = append(names, list.Items[i].Name)
		}
		return names, nil
	})
}

// CompleteAddresses completes addresses that somebody has, among the first few hundred.
func (c *Cluster) CompleteAddresses(command *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	return complete(command, args, len(args)+1, begun, func(ctx context.Context, options metav1.ListOptions) ([]string, error) {
		berth, err := c.Berth()
		if err != nil {
			return nil, err
		}
		list, err := berth.FloatingIPs.List(ctx, options)
		if err != nil {
			return nil, err
		}
		var addresses []string
		for i := range list.Items {
			addresses = append(addresses, list.Items[i].Spec.Address)
		}
		return addresses, nil
	})
}

// complete completes an argument, if the command takes another. Without an answer of the
// cluster there is no completion.
func complete(command *cobra.Command, args []string, most int, begun string, names func(context.Context, metav1.ListOptions) ([]string, error)) ([]string, cobra.ShellCompDirective) {
	if len(args) >= most {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx := command.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completes)
	defer cancel()
	all, err := names(ctx, metav1.ListOptions{Limit: mostComplete})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var fitting []string
	for _, name := range all {
		if strings.HasPrefix(name, begun) {
			fitting = append(fitting, name)
		}
	}
	return fitting, cobra.ShellCompDirectiveNoFileComp
}
