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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/berth-dev/berth/cmd/internal/daemon"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/services"
)

// cleanupName is the name of the DaemonSet that cleans the nodes, and its pods' label.
const cleanupName = "berth-cleanup"

// release is Berth's release of Helm.
type release struct {
	namespace, name string
	revision        int
	// overlay says that the agents give pods without a floating IP their network.
	overlay bool
	// force lets Services and nodes lose their addresses.
	force bool
}

// newUninstallCommand returns the commands that Helm runs when it uninstalls the chart.
func newUninstallCommand() *cobra.Command {
	kubeconfig := ""
	command := &cobra.Command{Use: "uninstall", Short: "Is run by Helm before and after it uninstalls the chart", Args: cobra.NoArgs}
	daemon.AddKubeconfig(command.PersistentFlags(), &kubeconfig)
	command.AddCommand(newUninstallCheckCommand(&kubeconfig), newUninstallWaitCommand(&kubeconfig))
	return command
}

func newUninstallCheckCommand(kubeconfig *string) *cobra.Command {
	r := release{}
	command := &cobra.Command{
		Use:   "check",
		Short: "Fails while pods would lose their network, or Services and nodes their addresses",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := daemon.Config(*kubeconfig)
			if err != nil {
				return err
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
			if err := r.unused(ips.Items); err != nil || r.force {
				return err
			}
			return settlePools(cmd.Context(), berth)
		},
	}
	fs := command.Flags()
	fs.StringVar(&r.namespace, "namespace", "berth-system", "Namespace of the release.")
	fs.StringVar(&r.name, "release", "berth", "Name of the release.")
	fs.IntVar(&r.revision, "revision", 1, "Revision of the release.")
	fs.BoolVar(&r.overlay, "overlay", false, "The agents give pods without a floating IP their network.")
	fs.BoolVar(&r.force, "force", false, "Let Services and nodes lose their addresses.")
	return command
}

// named is how many holders of a kind an error names.
const named = 5

// losses say for each kind of [v1alpha1.FloatingIPSpec.Holder] what an uninstall would take, and
// how its user frees it first.
var losses = []struct {
	kind, loss, remedy string
	// forced says that release.force lets it happen. Nobody can clean a node below its pods.
	forced bool
}{
	{"Pod", "these pods have floating IPs and would lose their network: %s", "Delete them (kubectl get floatingips shows all)", false},
	{"Service", "these Services have floating IPs and clients would not reach them: %s", "Delete them, or give them another spec.type", true},
	{"IPClaim", "pods leave with the addresses of these IPClaims (egress), and would leave otherwise: %s", "Delete them", true},
	{"Node", "these nodes have addresses of their own, by which pods may leave (egress), and would lose them: %s", "Take spec.nodeAddresses and spec.egress out of their IPPools", true},
}

// unused returns an error, of one line, where anybody would lose an address, or pods their network.
// Helm notes an uninstall that it began, and refuses to upgrade then: the error says how to go on.
func (r release) unused(ips []v1alpha1.FloatingIP) error {
	has := map[string][]string{}
	for i := range ips {
		if holder := ips[i].Spec.Holder(); holder != nil {
			name := strings.TrimPrefix(holder.Text(), holder.Kind+" ")
			has[holder.Kind] = append(has[holder.Kind], name)
		}
	}
	var why []string
	forced := ""
	for _, l := range losses {
		all := slices.Compact(slices.Sorted(slices.Values(has[l.kind])))
		if len(all) == 0 || l.forced && r.force {
			continue
		}
		list := strings.Join(all[:min(len(all), named)], ", ")
		if more := len(all) - named; more > 0 {
			list += fmt.Sprintf(" and %d more", more)
		}
		why = append(why, fmt.Sprintf(l.loss, list)+". "+l.remedy)
		if l.forced {
			forced = " To have Services and nodes lose their addresses, set the value uninstall.force=true."
		}
	}
	if len(why) == 0 && r.overlay {
		why = append(why, "the agents give all other pods their network, too, which these would lose: overlay.enabled is true. Give the nodes another CNI configuration, upgrade with overlay.enabled=false, restart the pods")
	}
	if len(why) == 0 {
		return nil
	}
	in := "-n " + r.namespace + " " + r.name
	return fmt.Errorf("nothing was uninstalled: %s, and uninstall again.%s To keep Berth, and before the next helm upgrade, which Helm refuses now: helm rollback %s %d . To leave all pods and nodes as they are until Berth is installed again, and pods neither start nor end until then: kubectl delete validatingadmissionpolicybinding in-use.berth.dev, and helm uninstall %s --no-hooks",
		strings.Join(why, "; "), forced, in, r.revision, in)
}

// settlePools writes into the status of pools that nobody has an address, as the records say. The
// policy in-use.berth.dev asks the status, which berth-controller writes a moment later, or never,
// for Helm deletes it before the agents.
func settlePools(ctx context.Context, berth *client.Client) error {
	pools, err := berth.IPPools.List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list IPPools: %w", err)
	}
	for _, pool := range pools.Items {
		if pool.Status.Allocated == 0 {
			continue
		}
		if _, err := berth.IPPools.Patch(ctx, pool.Name, types.MergePatchType, []byte(`{"status":{"allocated":0}}`), metav1.PatchOptions{}, "status"); err != nil {
			return fmt.Errorf("write the status of IPPool %s: %w", pool.Name, err)
		}
	}
	return nil
}

// clearServices takes the addresses of Berth out of the status of Services: nobody answers for them
// any more.
func clearServices(ctx context.Context, kube kubernetes.Interface) error {
	all, err := kube.CoreV1().Services(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list Services: %w", err)
	}
	for i := range all.Items {
		s := &all.Items[i]
		if !services.IsOurs(s) || len(s.Status.LoadBalancer.Ingress) == 0 {
			continue
		}
		_, err := kube.CoreV1().Services(s.Namespace).Patch(ctx, s.Name, types.MergePatchType, []byte(`{"status":{"loadBalancer":null}}`), metav1.PatchOptions{}, "status")
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("take the address out of the status of Service %s/%s: %w", s.Namespace, s.Name, err)
		}
	}
	return nil
}

func newUninstallWaitCommand(kubeconfig *string) *cobra.Command {
	namespace := ""
	command := &cobra.Command{
		Use:   "wait",
		Short: "Clears the status of Services, waits until the nodes are clean, and ends the DaemonSet " + cleanupName,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM)
			defer stop()
			config, err := daemon.Config(*kubeconfig)
			if err != nil {
				return err
			}
			kube, err := kubernetes.NewForConfig(config)
			if err != nil {
				return fmt.Errorf("create the Kubernetes client: %w", err)
			}
			if err := clearServices(ctx, kube); err != nil {
				fmt.Fprintln(cmd.ErrOrStderr(), err) // and the nodes are cleaned all the same
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
