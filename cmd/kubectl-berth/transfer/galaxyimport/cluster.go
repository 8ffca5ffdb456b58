// SPDX-License-Identifier: Apache-2.0

package galaxyimport

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/cmd/kubectl-berth/transfer/plan"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/galaxy"
	"github.com/berth-dev/berth/ipam/podrequest"
)

// Kinds returns the kinds, in lower case, of the objects that a plan needs.
func Kinds(ips []galaxy.FloatingIP, pods []*v1.Pod) []string {
	kinds := map[string]bool{}
	for i := range ips {
		key, err := galaxy.ParseKey(ips[i].Spec.Key)
		if err != nil || key.Type == "" || key.Pool != "" || key.Type == galaxy.TypeNone {
			continue
		}
		kinds[kindOf(key.Type)] = true
	}
	for _, pod := range pods {
		if controller := metav1.GetControllerOfNoCopy(pod); controller != nil && podrequest.StandsBetween(controller) {
			kinds[strings.ToLower(controller.Kind)] = true
		}
	}
	return slices.Sorted(maps.Keys(kinds))
}

func kindOf(keyType string) string {
	return cmp.Or(map[string]string{galaxy.TypeStatefulSet: "statefulset", galaxy.TypeDeployment: "deployment"}[keyType], keyType)
}

type cluster struct {
	byName map[types.NamespacedName]*v1.Pod
	byUID  map[types.UID]*v1.Pod
	// byAddress has the live pods with an address in Galaxy's annotation, sorted by name.
	byAddress map[netip.Addr][]*v1.Pod
	workloads map[workloadName][]Workload
	kinds     map[string][]schema.GroupVersionKind
}

type workloadName struct{ kind, namespace, name string }

func newCluster(input *Input) *cluster {
	c := &cluster{
		byName:    plan.Index(input.Pods, plan.KeyOf),
		byUID:     plan.Index(input.Pods, (*v1.Pod).GetUID),
		byAddress: map[netip.Addr][]*v1.Pod{},
		workloads: map[workloadName][]Workload{},
		kinds:     input.Kinds,
	}
	for _, pod := range input.Pods {
		if !plan.IsLive(pod) || !asks(pod) {
			continue
		}
		// Ignore an annotation that cannot be read: Galaxy did not write it.
		addresses, _ := galaxy.AssignedAddresses(pod.Annotations)
		for _, addr := range addresses {
			c.byAddress[addr] = append(c.byAddress[addr], pod)
		}
	}
	for _, pods := range c.byAddress {
		slices.SortFunc(pods, func(a, b *v1.Pod) int {
			return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
		})
	}
	for _, workload := range input.Workloads {
		name := workloadName{strings.ToLower(workload.Kind), workload.Namespace, workload.Name}
		c.workloads[name] = append(c.workloads[name], workload)
	}
	return c
}

func (c *cluster) live(uid types.UID) *v1.Pod {
	if pod := c.byUID[uid]; pod != nil && plan.IsLive(pod) {
		return pod
	}
	return nil
}

// holder returns the live pod that uses an address. agrees: it is that of Galaxy's record.
func (c *cluster) holder(addr netip.Addr, key galaxy.Key, attributes galaxy.Attributes) (pod *v1.Pod, agrees bool) {
	if attributes.PodUID != "" {
		if pod := c.live(attributes.PodUID); pod != nil {
			return pod, true
		}
	}
	users := c.byAddress[addr]
	for _, pod := range users {
		if pod.Namespace == key.Namespace && pod.Name == key.Pod {
			return pod, true
		}
	}
	if len(users) > 0 {
		return users[0], false
	}
	return nil, false
}

func (c *cluster) isPending(key galaxy.Key, attributes galaxy.Attributes) bool {
	pod := c.byUID[attributes.PodUID]
	if pod == nil {
		pod = c.byName[types.NamespacedName{Namespace: key.Namespace, Name: key.Pod}]
	}
	return pod != nil && pod.Spec.NodeName == "" && asks(pod)
}

// ownerOf resolves the owner of a pod's addresses as the scheduler does. It is the pod
// itself if the workload is an IPClaim, which cannot control pods.
func (c *cluster) ownerOf(pod *v1.Pod) v1alpha1.Owner {
	controller := metav1.GetControllerOfNoCopy(pod)
	find := func(namespace, name string) (metav1.Object, error) {
		found := &metav1.ObjectMeta{UID: controller.UID} // perhaps deleted meanwhile
		for _, workload := range c.workloads[workloadName{strings.ToLower(controller.Kind), namespace, name}] {
			if workload.UID == controller.UID && workload.Controller != nil {
				reference, yes := *workload.Controller, true
				reference.Controller = &yes
				found.OwnerReferences = []metav1.OwnerReference{reference}
			}
		}
		return found, nil
	}
	owner, err := podrequest.OwnerOf(pod, podrequest.Between{ReplicaSet: find, Job: find, VirtualMachineInstance: find, StatefulSet: find})
	if err != nil || owner.IsClaim() {
		return podrequest.PodItself(pod.Namespace, pod.Name, pod.UID)
	}
	return owner
}

// ownerNamed resolves the workload that a key names. If it does not exist, the owner has
// [NilUID]. It returns an error if the key is ambiguous.
func (c *cluster) ownerNamed(key galaxy.Key, nodeName string) (owner v1alpha1.Owner, found bool, err error) {
	if key.Type == galaxy.TypeNone {
		return podrequest.PodItself(key.Namespace, key.Pod, NilUID), false, nil
	}
	kind := kindOf(key.Type)
	workloads := c.workloads[workloadName{kind, key.Namespace, key.App}]
	var reference metav1.OwnerReference
	switch len(workloads) {
	case 1:
		found = true
		reference = metav1.OwnerReference{
			APIVersion: workloads[0].GroupVersion().String(), Kind: workloads[0].Kind,
			Name: key.App, UID: workloads[0].UID,
		}
	case 0:
		known, err := c.kindNamed(kind)
		if err != nil {
			return owner, false, err
		}
		reference = metav1.OwnerReference{APIVersion: known.GroupVersion().String(), Kind: known.Kind, Name: key.App, UID: NilUID}
	default:
		return owner, false, fmt.Errorf("there are %s %s/%s of several API groups, and the key does not name the group", workloads[0].Kind, key.Namespace, key.App)
	}
	if key.Type == galaxy.TypeDeployment {
		// Its ReplicaSets control its pods.
		return podrequest.SharedBy(&reference, key.Namespace), found, nil
	}
	owner = podrequest.Controlling(&reference, key.Namespace, key.Pod, nodeName)
	if owner.Kind == "DaemonSet" && nodeName == "" {
		return owner, found, fmt.Errorf("the address belongs to a DaemonSet, but Galaxy's record no longer names the node")
	}
	return owner, found, nil
}

// kindNamed returns the kind with a lower-case name: the built-in kind, else the only one.
func (c *cluster) kindNamed(kind string) (schema.GroupVersionKind, error) {
	switch kind {
	case "statefulset":
		return schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "StatefulSet"}, nil
	case "deployment":
		return schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, nil
	}
	switch known := c.kinds[kind]; len(known) {
	case 1:
		return known[0], nil
	case 0:
		return schema.GroupVersionKind{}, fmt.Errorf("the cluster has no kind %q", kind)
	default:
		return schema.GroupVersionKind{}, fmt.Errorf("several API groups have a kind %q, and the key does not name the group", kind)
	}
}
