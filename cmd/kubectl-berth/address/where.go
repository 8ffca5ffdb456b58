// SPDX-License-Identifier: Apache-2.0

package address

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/cluster"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
)

const whereLong = `Prints the addresses of a pod, a workload or an IPClaim, also addresses that are retained
for it while it has no pod.

Users who may not read FloatingIPs learn of the addresses of the pods that they may read,
and not of retained ones.`

const whereExamples = `  # A pod
  kubectl berth where web-0 -n shop

  # A workload or claim: sts, deploy, ds, job, cronjob, ipclaim or any other kind
  kubectl berth where sts/web -n shop
  kubectl berth where claim/front`

// NewWhere returns the command where.
func NewWhere(of *cluster.Cluster, streams genericiooptions.IOStreams) *cobra.Command {
	return command.Command{
		Use: "where POD | KIND/NAME", Short: "Prints the addresses of a pod, workload or claim", Long: whereLong, Example: whereExamples,
		Args: cobra.ExactArgs(1), Complete: of.CompleteOwners, Namespaced: true,
		Watch: "Print another line whenever one of the addresses changes.",
		Prepare: func(call *command.Call) error {
			_, err := parseTarget(call.Args[0], "")
			return err
		},
		Answer: where,
	}.New(of, streams)
}

// kinds are the short names of kinds that own addresses.
var kinds = map[string]string{
	"po": "Pod", "pod": "Pod", "pods": "Pod",
	"sts": "StatefulSet", "statefulset": "StatefulSet", "statefulsets": "StatefulSet",
	"deploy": "Deployment", "deployment": "Deployment", "deployments": "Deployment",
	"ds": "DaemonSet", "daemonset": "DaemonSet", "daemonsets": "DaemonSet",
	"rs": "ReplicaSet", "replicaset": "ReplicaSet", "replicasets": "ReplicaSet",
	"rc": "ReplicationController", "replicationcontroller": "ReplicationController", "replicationcontrollers": "ReplicationController",
	"job": "Job", "jobs": "Job", "cj": "CronJob", "cronjob": "CronJob", "cronjobs": "CronJob",
	"claim": "IPClaim", "claims": "IPClaim", "ipclaim": "IPClaim", "ipclaims": "IPClaim",
}

// target is the pod or workload that the user asks about.
type target struct{ kind, namespace, name string }

func parseTarget(text, namespace string) (target, error) {
	kind, name, qualified := strings.Cut(text, "/")
	if !qualified {
		kind, name = "Pod", text
	} else if known, ok := kinds[strings.ToLower(kind)]; ok {
		kind = known
	} else {
		kind, _, _ = strings.Cut(kind, ".") // a resource is written with its group
	}
	if kind == "" || name == "" || strings.Contains(name, "/") {
		return target{}, fmt.Errorf("%q is neither POD nor KIND/NAME: write web-0 or statefulset/web, and the namespace with -n", text)
	}
	return target{kind, namespace, name}, nil
}

func (of *target) String() string { return of.kind + " " + of.namespace + "/" + of.name }

// isKind compares kinds as users write them: a kind or its plural.
func (of *target) isKind(kind string) bool {
	return strings.EqualFold(of.kind, kind) || strings.EqualFold(of.kind, kind+"s")
}

// selector selects FloatingIPs that may be the target's.
func (of *target) selector() string {
	set := fields.Set{"spec.owner.namespace": of.namespace}
	if of.kind != "Pod" {
		set["spec.owner.name"] = of.name
	}
	return set.String()
}

// has says whether an address is the target's: of a pod, one that it holds or that is kept
// for a pod of its name.
func (of *target) has(ip *v1alpha1.FloatingIP) bool {
	spec := &ip.Spec
	switch {
	case spec.Owner == nil:
		return false
	case of.kind != "Pod":
		return of.isKind(spec.Owner.Kind)
	case spec.Pod != nil:
		return spec.Pod.Name == of.name
	}
	return spec.Owner.PodName == of.name || spec.Owner.PodName == "" && spec.LastPod == of.name
}

func where(ctx context.Context, call *command.Call) (*answer.Answer, error) {
	of, err := parseTarget(call.Args[0], call.Namespace)
	if err != nil {
		return nil, err
	}
	found, version, err := of.find(ctx, call)
	switch {
	case err != nil:
		return nil, err
	case call.Watching && version == "":
		err = errors.New("--watch needs the right to watch FloatingIPs: this output is of this moment")
	}
	call.Follow(version, func(options metav1.ListOptions) (watch.Interface, error) {
		options.FieldSelector = of.selector()
		return call.Berth.FloatingIPs.Watch(ctx, options)
	}, func(event watch.Event) (*answer.Answer, error) {
		ip, ok := event.Object.(*v1alpha1.FloatingIP)
		if !ok || !of.has(ip) {
			return nil, nil
		}
		changed := standing.AddressOf(ip)
		if event.Type == watch.Deleted {
			changed = standing.Address{Address: ip.Spec.Address, State: "Deleted", Pool: ip.Spec.Pool, Note: "it is no longer " + of.String() + "'s"}
		}
		return answerOf([]standing.Address{changed}, time.Now()), nil
	})
	return answerOf(found, time.Now()), err
}

// find returns the target's addresses, and the resource version to follow them from: ""
// if the user may not.
func (of *target) find(ctx context.Context, call *command.Call) ([]standing.Address, string, error) {
	var pod *v1.Pod
	if of.kind == "Pod" {
		var err error
		pod, err = call.Kube.CoreV1().Pods(of.namespace).Get(ctx, of.name, metav1.GetOptions{})
		// A user who may not read pods may still read FloatingIPs.
		if err != nil && !failure.IsNoSuch(err) && failure.Forbidden(err) == "" {
			return nil, "", fmt.Errorf("get pod %s/%s: %w", of.namespace, of.name, err)
		}
		if err != nil {
			pod = nil
		}
	}
	ips, version, err := cluster.FloatingIPs(ctx, call.Berth, of.selector())
	if failure.Forbidden(err) != "" {
		found, err := of.ofOwnPods(ctx, call, pod, err)
		return found, "", err
	}
	if err != nil {
		return nil, "", err
	}
	var found []standing.Address
	for i := range ips {
		if of.has(&ips[i]) {
			each := standing.AddressOf(&ips[i])
			if pod != nil && ips[i].Spec.Pod != nil && ips[i].Spec.Pod.UID != pod.UID {
				each.Note = "recorded for an earlier pod of this name"
			}
			found = append(found, each)
		}
	}
	slices.SortFunc(found, byPod)
	if len(found) == 0 {
		return nil, version, of.nothing(call.ErrOut, pod)
	}
	return found, version, nil
}

// byPod orders addresses by their pods; addresses without one come last.
func byPod(a, b standing.Address) int {
	if (a.Pod == nil) != (b.Pod == nil) {
		if a.Pod == nil {
			return 1
		}
		return -1
	}
	one, _ := v1alpha1.AddrOf(a.Object)
	other, _ := v1alpha1.AddrOf(b.Object)
	return cmp.Or(strings.Compare(a.Pod.String(), b.Pod.String()), one.Compare(other))
}

// nothing says on stderr why nothing is found, or fails if there is no such pod.
func (of *target) nothing(out io.Writer, pod *v1.Pod) error {
	switch {
	case of.kind != "Pod":
		fmt.Fprintf(out, "No address belongs to %s: kubectl berth top owners lists who has addresses.\n", of)
	case pod == nil:
		return fmt.Errorf("there is no pod %s/%s, and no address is kept for one: kubectl get pods -n %s lists them, -n chooses another namespace, KIND/NAME a workload", of.namespace, of.name, of.namespace)
	case pod.Spec.NodeName == "":
		fmt.Fprintf(out, "Pod %s/%s has no address yet: kubectl berth why %s -n %s says why.\n", of.namespace, of.name, of.name, of.namespace)
	default:
		fmt.Fprintf(out, "Pod %s/%s has no floating IP: kubectl berth why %s -n %s says why.\n", of.namespace, of.name, of.name, of.namespace)
	}
	return nil
}

// ofOwnPods is for users who may not read FloatingIPs: it reads the annotations of the
// target's pods.
func (of *target) ofOwnPods(ctx context.Context, call *command.Call, pod *v1.Pod, missing error) ([]standing.Address, error) {
	var pods []v1.Pod
	switch {
	case pod != nil:
		pods = []v1.Pod{*pod}
	case of.kind == "Pod":
		return nil, fmt.Errorf("there is no pod %s/%s that you may read, and for retained addresses: %w", of.namespace, of.name, missing)
	default:
		list, err := call.Kube.CoreV1().Pods(of.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, missing // it gives the user the cause
		}
		between := cluster.Between(ctx, call.Kube)
		for i := range list.Items {
			if of.controls(&list.Items[i], between) {
				pods = append(pods, list.Items[i])
			}
		}
	}
	var found []standing.Address
	for i := range pods {
		names, _ := podrequest.NamesOf(&pods[i])
		for _, name := range names {
			if addr, err := v1alpha1.AddrOf(name); err == nil && runsWith(&pods[i]) {
				found = append(found, ofPod(&pods[i], addr))
			}
		}
	}
	fmt.Fprintf(call.ErrOut, "Retained addresses are not shown: %s.\n", failure.Forbidden(missing))
	if len(found) == 0 {
		return nil, of.nothing(call.ErrOut, pod)
	}
	return found, nil
}

// controls says whether a pod belongs to the target, by its claim or by its owners.
func (of *target) controls(pod *v1.Pod, between podrequest.Between) bool {
	if pod.Annotations[v1alpha1.AnnotationFloatingIPs] == "" {
		return false
	}
	if claim := pod.Annotations[v1alpha1.AnnotationClaim]; claim != "" || of.isKind("IPClaim") {
		return of.isKind("IPClaim") && claim == of.name
	}
	owner, err := podrequest.OwnerOf(pod, between)
	return err == nil && of.isKind(owner.Kind) && owner.Name == of.name
}
