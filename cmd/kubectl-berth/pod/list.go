// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/customkind"
	"github.com/berth-dev/berth/ipam/fixedset"
	"github.com/berth-dev/berth/ipam/podrequest"
)

const fewPools = 8

// list reads the objects that decide a request: pools, the claim, FloatingIPs. The request
// comes back with the claim's terms. An error may be a *ipam.ShortageError.
func (l *look) list(ctx context.Context, request ipam.Request) (*ipam.Listing, ipam.Request, error) {
	pools, err := l.Pools(ctx)
	if err != nil {
		return nil, request, err
	}
	var claims []*v1alpha1.IPClaim
	if request.Claim != "" {
		claim, err := l.Berth.IPClaims(request.Namespace).Get(ctx, request.Claim, metav1.GetOptions{})
		if err != nil && !failure.IsNoSuch(err) {
			return nil, request, fmt.Errorf("get IPClaim %s/%s: %w", request.Namespace, request.Claim, err)
		}
		if err == nil {
			claims = append(claims, claim)
		}
	}
	known, err := l.known(ctx, request.Namespace)
	if err != nil {
		return nil, request, err
	}
	listing := ipam.NewListing(pools, claims, known)
	terms, err := listing.Terms(request)
	if err != nil {
		return nil, request, err
	}
	selectors := []string{""}
	if n := len(terms.Pools); n > 0 && n <= fewPools {
		selectors = []string{"spec.owner.namespace=" + terms.Owner.Namespace + ",spec.owner.name=" + terms.Owner.Name, "spec.pool="}
		for _, pool := range terms.Pools {
			selectors = append(selectors, "spec.pool="+pool)
		}
	}
	for _, selector := range selectors {
		if err := l.EachFloatingIP(ctx, selector, listing.Observe); err != nil {
			return nil, request, err
		}
	}
	return listing, terms, nil
}

// fixedSet returns known false if the owner has no fixed set, or is gone: no pod can exceed it.
func (l *look) fixedSet(ctx context.Context, owner *ipam.Owner) (size fixedset.Size, known bool, err error) {
	var uid types.UID
	switch kind := schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).GroupKind(); {
	case kind == schema.GroupKind{Group: appsv1.GroupName, Kind: "Deployment"}:
		deployment, err := l.Kube.AppsV1().Deployments(owner.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
		if err != nil {
			return size, false, unlessGone(err, owner)
		}
		size, uid = fixedset.OfDeployment(&deployment.Spec), deployment.UID
	case kind == schema.GroupKind{Group: appsv1.GroupName, Kind: "ReplicaSet"}:
		set, err := l.Kube.AppsV1().ReplicaSets(owner.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
		if err != nil {
			return size, false, unlessGone(err, owner)
		}
		size, uid = fixedset.OfReplicaSet(&set.Spec), set.UID
	case kind.Group == appsv1.GroupName, kind.Group == batchv1.GroupName:
		return size, false, nil
	default:
		read, _, err := customkind.NewReader(customkind.Config{Discovery: l.Kube.Discovery(), Objects: l.Dynamic, ScalableOnly: true}).
			Find(ctx, &v1alpha1.Owner{APIVersion: owner.APIVersion, Kind: owner.Kind, Namespace: owner.Namespace, Name: owner.Name, UID: types.UID(owner.UID)}, true)
		return read.Size, err == nil && read.Exists && read.Scaled, err
	}
	return size, string(uid) == owner.UID && uid != "", nil
}

func unlessGone(err error, owner *ipam.Owner) error {
	if failure.IsNoSuch(err) {
		return nil
	}
	return fmt.Errorf("get %s %s/%s: %w", owner.Kind, owner.Namespace, owner.Name, err)
}

// full returns the nodes whose pods have as many addresses as the node advertises.
func (l *look) full(ctx context.Context, nodes []v1.Node) (map[string]bool, error) {
	limits, used := map[string]map[v1.ResourceName]int64{}, map[string]map[v1.ResourceName]int64{}
	for i := range nodes {
		if amounts := amountsOf(l.reader, nodes[i].Status.Allocatable); len(amounts) > 0 {
			limits[nodes[i].Name], used[nodes[i].Name] = amounts, map[v1.ResourceName]int64{}
		}
	}
	selectors := []string{""}
	if len(limits) <= fewNodes {
		selectors = nil
		for name := range limits {
			selectors = append(selectors, "spec.nodeName="+name)
		}
	}
	for _, selector := range selectors {
		err := command.Each(ctx, l.Kube.CoreV1().Pods(metav1.NamespaceAll).List, metav1.ListOptions{FieldSelector: selector}, func(pod *v1.Pod) error {
			if sums := used[pod.Spec.NodeName]; sums != nil && pod.Status.Phase != v1.PodSucceeded && pod.Status.Phase != v1.PodFailed {
				for name, amount := range amountsOf(l.reader, resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})) {
					sums[name] += amount
				}
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("list the pods of the nodes: %w", err)
		}
	}
	full := map[string]bool{}
	for name := range limits {
		full[name] = !l.reader.WithinNode(&l.pod.Spec, limits[name], used[name])
	}
	return full, nil
}

const fewNodes = 8

func amountsOf(reader podrequest.Reader, all v1.ResourceList) map[v1.ResourceName]int64 {
	amounts := map[v1.ResourceName]int64{}
	for _, name := range reader.Resources() {
		if quantity, ok := all[name]; ok {
			amounts[name] = quantity.Value()
		}
	}
	return amounts
}

// known are the pods of a namespace, as listed. Others cannot have addresses of the same owner.
type known struct {
	pods  map[string]*v1.Pod
	nodes map[string]*v1.Node
}

func (l *look) known(ctx context.Context, namespace string) (*known, error) {
	pods, err := l.Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the pods of namespace %s: %w", namespace, err)
	}
	if l.nodes, err = l.Nodes(ctx, ""); err != nil {
		return nil, err
	}
	k := &known{pods: map[string]*v1.Pod{}, nodes: map[string]*v1.Node{}}
	for i := range pods.Items {
		k.pods[pods.Items[i].Name] = &pods.Items[i]
	}
	for i := range l.nodes {
		k.nodes[l.nodes[i].Name] = &l.nodes[i]
	}
	return k, nil
}

func (k *known) IsGone(_, name, uid string) bool { return ipam.IsGone(k.pods[name], uid) }

func (k *known) IsTerminating(_, name, uid string) bool {
	pod := k.pods[name]
	return pod != nil && pod.UID == types.UID(uid) && pod.DeletionTimestamp != nil
}

func (k *known) IsLost(_, name, uid string) bool {
	pod := k.pods[name]
	return pod != nil && pod.UID == types.UID(uid) && ipam.IsLost(pod, func() *v1.Node { return k.nodes[pod.Spec.NodeName] })
}

// NeverBound is not known of pods that are gone.
func (k *known) NeverBound(string) bool { return false }

func (k *known) Node(name string) *v1.Node { return k.nodes[name] }
