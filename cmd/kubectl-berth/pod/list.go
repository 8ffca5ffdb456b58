// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/cmd/kubectl-berth/cluster"
	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/fixedset"
)

// fewPools is up to how many pools are listed one by one.
const fewPools = 8

// list reads what the answer to a request depends on: pools, the claim, FloatingIPs. The
// request comes back with the claim's terms. An error may be a *ipam.ShortageError.
func (l *look) list(ctx context.Context, request ipam.Request) (*ipam.Listing, ipam.Request, error) {
	pools, err := cluster.Pools(ctx, l.berth)
	if err != nil {
		return nil, request, err
	}
	var claims []*v1alpha1.IPClaim
	if request.Claim != "" {
		claim, err := l.berth.IPClaims(request.Namespace).Get(ctx, request.Claim, metav1.GetOptions{})
		if err != nil && !cluster.IsNoSuch(err) {
			return nil, request, fmt.Errorf("get IPClaim %s/%s: %w", request.Namespace, request.Claim, err)
		}
		if err == nil {
			claims = append(claims, claim)
		}
	}
	known, err := l.known(ctx)
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
		selectors = []string{fields.Set{"spec.owner.namespace": terms.Owner.Namespace, "spec.owner.name": terms.Owner.Name}.String(), "spec.pool="}
		for _, pool := range terms.Pools {
			selectors = append(selectors, fields.OneTermEqualSelector("spec.pool", pool).String())
		}
	}
	for _, selector := range selectors {
		if err := cluster.EachFloatingIP(ctx, l.berth, selector, func(ip *v1alpha1.FloatingIP) error {
			listing.Observe(ip)
			return nil
		}); err != nil {
			return nil, request, err
		}
	}
	return listing, terms, nil
}

// limit writes into a request the size of its owner's fixed set. The sets of custom kinds
// are not read, so that a pod that waits only for another of its own is not explained.
func limit(ctx context.Context, kube kubernetes.Interface, request *ipam.Request) error {
	owner := &request.Owner
	var size fixedset.Size
	var uid types.UID
	switch owner.APIVersion + " " + owner.Kind {
	case "apps/v1 Deployment":
		deployment, err := kube.AppsV1().Deployments(owner.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
		if err != nil {
			return unlessGone(err, "Deployment", owner)
		}
		size, uid = fixedset.OfDeployment(&deployment.Spec, request.Spare), deployment.UID
	case "apps/v1 ReplicaSet":
		set, err := kube.AppsV1().ReplicaSets(owner.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
		if err != nil {
			return unlessGone(err, "ReplicaSet", owner)
		}
		size, uid = fixedset.OfReplicaSet(&set.Spec, request.Spare), set.UID
	}
	if string(uid) == owner.UID && uid != "" && !size.Unlimited {
		request.FixedSet, request.MaxPods = true, int(size.Pods())
	}
	return nil
}

func unlessGone(err error, kind string, owner *ipam.Owner) error {
	if cluster.IsNoSuch(err) {
		return nil // no pod can exceed its set
	}
	return fmt.Errorf("get %s %s/%s: %w", kind, owner.Namespace, owner.Name, err)
}

// known are the pods of a namespace, as listed.
type known struct {
	pods  map[string]*v1.Pod
	nodes map[string]*v1.Node
}

// known lists the pods of the namespace. Others cannot have addresses of the same owner.
func (l *look) known(ctx context.Context) (*known, error) {
	k := &known{pods: map[string]*v1.Pod{}, nodes: map[string]*v1.Node{}}
	pods, err := l.kube.CoreV1().Pods(l.pod.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the pods of namespace %s: %w", l.pod.Namespace, err)
	}
	for i := range pods.Items {
		k.pods[pods.Items[i].Name] = &pods.Items[i]
	}
	nodes, err := l.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("list the nodes: %w", err)
	}
	for i := range nodes.Items {
		k.nodes[nodes.Items[i].Name] = &nodes.Items[i]
	}
	return k, nil
}

// of returns the pod of a name that has the UID.
func (k *known) of(name, uid string) *v1.Pod {
	if pod := k.pods[name]; pod != nil && pod.UID == types.UID(uid) {
		return pod
	}
	return nil
}

// IsGone says whether the pod does not exist or is finished.
func (k *known) IsGone(_, name, uid string) bool { return ipam.IsGone(k.pods[name], uid) }

// IsTerminating says whether the pod is being deleted.
func (k *known) IsTerminating(_, name, uid string) bool {
	pod := k.of(name, uid)
	return pod != nil && pod.DeletionTimestamp != nil
}

// IsLost says whether the pod is being deleted and its node is lost.
func (k *known) IsLost(namespace, name, uid string) bool {
	pod := k.of(name, uid)
	if pod == nil || !k.IsTerminating(namespace, name, uid) || pod.Spec.NodeName == "" {
		return false
	}
	node := k.nodes[pod.Spec.NodeName]
	return node == nil || ipam.IsLost(node)
}

// NeverBound is not known of pods that are gone.
func (k *known) NeverBound(string) bool { return false }
