// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Limits of completion: the user waits for it at the keyboard.
const (
	completes    = 2 * time.Second
	mostComplete = 500
)

// CompletePools completes the name of one pool.
func (c *Cluster) CompletePools(command *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	return complete(command, args, 1, begun, func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		berth, err := c.Berth()
		if err != nil {
			return nil, err
		}
		return berth.IPPools.List(ctx, options)
	})
}

// CompletePods completes the name of one pod.
func (c *Cluster) CompletePods(command *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	return complete(command, args, 1, begun, func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		namespace, err := c.Namespace()
		if err != nil {
			return nil, err
		}
		kube, err := c.Kube()
		if err != nil {
			return nil, err
		}
		return kube.CoreV1().Pods(namespace).List(ctx, options)
	})
}

// CompleteAddresses completes addresses that somebody has, among the first few hundred.
func (c *Cluster) CompleteAddresses(command *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	return complete(command, args, len(args)+1, begun, func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		berth, err := c.Berth()
		if err != nil {
			return nil, err
		}
		return berth.FloatingIPs.List(ctx, options)
	})
}

// complete completes an argument, if the command takes another. Without an answer of the
// cluster there is no completion.
func complete(command *cobra.Command, args []string, most int, begun string, list func(context.Context, metav1.ListOptions) (runtime.Object, error)) ([]string, cobra.ShellCompDirective) {
	if len(args) >= most {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx := command.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completes)
	defer cancel()
	all, err := list(ctx, metav1.ListOptions{Limit: mostComplete})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var fitting []string
	_ = meta.EachListItem(all, func(object runtime.Object) error { // our function never fails
		name := ""
		switch object := object.(type) {
		case *v1alpha1.FloatingIP:
			name = object.Spec.Address
		case metav1.Object:
			name = object.GetName()
		}
		if strings.HasPrefix(name, begun) {
			fitting = append(fitting, name)
		}
		return nil
	})
	return fitting, cobra.ShellCompDirectiveNoFileComp
}
