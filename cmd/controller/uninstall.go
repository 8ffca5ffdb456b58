// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
)

// cleanupName is the name of the DaemonSet that cleans the nodes, and its pods' label.
const cleanupName = "berth-cleanup"

// release is Berth's release of Helm.
type release struct {
	namespace, name string
	revision        int
	// overlay says that the agents give pods without a floating IP their network.
	overlay bool
}

// newUninstallCommand returns the commands that Helm runs when it uninstalls the chart.
func newUninstallCommand() *cobra.Command {
	kubeconfig := ""
	command := &cobra.Command{Use: "uninstall", Short: "Is run by Helm before and after it uninstalls the chart", Args: cobra.NoArgs}
	command.PersistentFlags().StringVar(&kubeconfig, "kubeconfig", "", "Path of a kubeconfig file; empty: the pod's service account.")
	command.AddCommand(newUninstallCheckCommand(&kubeconfig), newUninstallWaitCommand(&kubeconfig))
	return command
}

func newUninstallCheckCommand(kubeconfig *string) *cobra.Command {
	r := release{}
	command := &cobra.Command{
		Use:   "check",
		Short: "Fails while pods would lose their network",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
			if err != nil {
				return fmt.Errorf("read the API server's address and credentials: %w", err)
			}
			berth, err := client.NewForConfig(config)
			if err != nil {
				return err
			}
			ips, err := berth.FloatingIPs.List(cmd.Context(), metav1.ListOptions{})
			if apierrors.IsNotFound(err) {
				return nil // The kinds were deleted, and all records with them.
			}
			if err != nil {
				return fmt.Errorf("list FloatingIPs: %w", err)
			}
			return r.unused(ips.Items)
		},
	}
	fs := command.Flags()
	fs.StringVar(&r.namespace, "namespace", "berth-system", "Namespace of the release.")
	fs.StringVar(&r.name, "release", "berth", "Name of the release.")
	fs.IntVar(&r.revision, "revision", 1, "Revision of the release.")
	fs.BoolVar(&r.overlay, "overlay", false, "The agents give pods without a floating IP their network.")
	return command
}

// named is how many pods an error names.
const named = 5

// unused returns an error, of one line, where pods would lose their network. Helm notes an uninstall that
// it began, and refuses to upgrade then: the error says how to go on.
func (r release) unused(ips []v1alpha1.FloatingIP) error {
	var why string
	switch pods := holders(ips); {
	case len(pods) > 0:
		list := strings.Join(pods[:min(len(pods), named)], ", ")
		if more := len(pods) - named; more > 0 {
			list += fmt.Sprintf(" and %d more", more)
		}
		why = "these pods have floating IPs and would lose their network: " + list + ". Delete them (kubectl get floatingips shows all), and uninstall again"
	case r.overlay:
		why = "the agents give all other pods their network, too, which these would lose: overlay.enabled is true. Give the nodes another CNI configuration, upgrade with overlay.enabled=false, restart the pods, and uninstall again"
	default:
		return nil
	}
	in := "-n " + r.namespace + " " + r.name
	return fmt.Errorf("nothing was uninstalled: %s. To keep Berth, and before the next helm upgrade, which Helm refuses now: helm rollback %s %d . To leave all pods and nodes as they are until Berth is installed again, and pods neither start nor end until then: helm uninstall %s --no-hooks", why, in, r.revision, in)
}

// holders returns the pods that hold addresses.
func holders(ips []v1alpha1.FloatingIP) []string {
	var pods []string
	for _, ip := range ips {
		switch pod, owner := ip.Spec.Pod, ip.Spec.Owner; {
		case pod != nil && owner != nil:
			pods = append(pods, owner.Namespace+"/"+pod.Name)
		case pod != nil:
			pods = append(pods, pod.Name)
		}
	}
	slices.Sort(pods)
	return slices.Compact(pods)
}

func newUninstallWaitCommand(kubeconfig *string) *cobra.Command {
	namespace := ""
	command := &cobra.Command{
		Use:   "wait",
		Short: "Waits until the nodes are clean, and ends the DaemonSet " + cleanupName,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM)
			defer stop()
			config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
			if err != nil {
				return fmt.Errorf("read the API server's address and credentials: %w", err)
			}
			kube, err := kubernetes.NewForConfig(config)
			if err != nil {
				return fmt.Errorf("create the Kubernetes client: %w", err)
			}
			return awaitClean(ctx, kube, namespace, cmd.OutOrStdout())
		},
	}
	command.Flags().StringVar(&namespace, "namespace", "berth-system", "Namespace of the DaemonSet.")
	return command
}

// awaitClean waits until each node is clean, and deletes the DaemonSet then.
func awaitClean(ctx context.Context, kube kubernetes.Interface, namespace string, out io.Writer) error {
	daemonSets := kube.AppsV1().DaemonSets(namespace)
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, cleanupName).String()
	source := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.FieldSelector = selector
			return daemonSets.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = selector
			return daemonSets.Watch(ctx, options)
		},
	}, kube)
	said := ""
	_, err := watchtools.UntilWithSync(ctx, source, &appsv1.DaemonSet{}, nil, func(event watch.Event) (bool, error) {
		set, ok := event.Object.(*appsv1.DaemonSet)
		if !ok || event.Type == watch.Deleted {
			return false, fmt.Errorf("the DaemonSet %s was deleted before all nodes were clean", cleanupName)
		}
		clean, text := cleaned(set)
		if text != said {
			fmt.Fprintln(out, text)
			said = text
		}
		return clean, nil
	})
	if err != nil {
		return fmt.Errorf("wait for clean nodes: %w; the DaemonSet %s goes on: delete it when all its pods are Ready (kubectl -n %s get pods -l app.kubernetes.io/name=%s -o wide)", err, cleanupName, namespace, cleanupName)
	}
	if err := daemonSets.Delete(ctx, cleanupName, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete DaemonSet %s: %w", cleanupName, err)
	}
	return nil
}

// cleaned returns whether all nodes are clean, and says how many.
func cleaned(set *appsv1.DaemonSet) (bool, string) {
	status := set.Status
	if status.ObservedGeneration < set.Generation {
		return false, "waiting for the pods that clean the nodes"
	}
	return status.NumberReady >= status.DesiredNumberScheduled, fmt.Sprintf("%d of %d nodes are clean", status.NumberReady, status.DesiredNumberScheduled)
}
