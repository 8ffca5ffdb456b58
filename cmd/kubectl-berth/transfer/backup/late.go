// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/transfer/plan"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/pools"
)

// lateHolder is a live pod that got an address after the backup, and the index of this
// address among the pod's addresses.
type lateHolder struct {
	pod   *v1.Pod
	index int
	// said: nothing but the pod's annotation says so.
	said bool
}

// findLate finds the addresses that live pods got after the backup, by name. The backup
// does not record them for these pods; without a record the scheduler would give them to
// other pods.
//
// The kubelet writes the pod's status, which has the first address of each family. It
// has an address of a pool only if Berth wired it. Of the others the annotation tells, which
// proves nothing: the user of a pod can write it.
func (p *planner) findLate(saved []*v1alpha1.FloatingIP) map[string]lateHolder {
	recorded := map[string]*v1alpha1.FloatingIP{}
	for _, ip := range saved {
		recorded[ip.Name] = ip
	}
	late, wired := map[string]lateHolder{}, map[string]bool{}
	for _, said := range []bool{false, true} {
		for _, pod := range p.input.Pods {
			told, also := p.wired(pod)
			for i, name := range slices.Concat(told, also) {
				if said != (i >= len(told)) || said && wired[name] {
					continue
				}
				wired[name] = true
				if ip := recorded[name]; ip == nil || ip.Spec.Pod == nil || ip.Spec.Pod.UID != pod.UID {
					late[name] = lateHolder{pod, i, said}
				}
			}
		}
	}
	return late
}

// wired returns the names of the FloatingIPs that a live pod runs with: the ones that its kubelet told, and the ones
// that its annotation has also, as many as it requests.
func (p *planner) wired(pod *v1.Pod) (told, also []string) {
	wants, _ := podrequest.Reader{Galaxy: true}.Requested(&pod.Spec)
	if wants == 0 || !plan.IsLive(pod) {
		return nil, nil
	}
	for _, ip := range pod.Status.PodIPs {
		addr, err := netip.ParseAddr(ip.IP)
		if err != nil || p.poolOf(addr) == nil {
			return nil, nil
		}
		told = append(told, v1alpha1.NameOf(addr))
	}
	if len(told) == 0 {
		return nil, nil
	}
	names, _ := podrequest.NamesOf(pod)
	for _, name := range names {
		if addr, err := v1alpha1.AddrOf(name); err == nil && !slices.Contains(told, name) && p.poolOf(addr) != nil && int64(len(told)+len(also)) < wants {
			also = append(also, name)
		}
	}
	return told, also
}

// poolOf returns the existing or restored pool that contains an address, or nil.
func (p *planner) poolOf(addr netip.Addr) *pools.Pool {
	if home, ok := p.snapshot.Home(addr); ok {
		return p.snapshot.Pools()[home]
	}
	return nil
}

// lateAddress decides about an address that a live pod got after the backup; saved is the
// backup's record of it, or nil.
func (p *planner) lateAddress(name string, late lateHolder, saved *v1alpha1.FloatingIP) plan.Item {
	pod := late.pod
	if saved != nil {
		if other := p.holder(saved); other != nil {
			item := p.address(saved)
			item.Decide, item.Note = true, fmt.Sprintf("pods %s and %s both run with it: delete one of them", other.Name, pod.Name)
			return item
		}
	}
	item := plan.Item{Action: plan.Create, Kind: "FloatingIP", Name: name}
	switch {
	case late.said:
		item.IP = p.podsOwn(name, late)
		item.IP.Spec.Reserved, item.Decide = true, true
		item.Note = fmt.Sprintf("pod %s says that it runs with it, which its user can write: reserved until you set spec.reserved to false; then it is freed with its pod", pod.Name)
	case saved != nil && isOf(&saved.Spec, pod):
		item.IP, item.Note = p.successor(saved, late), "another pod had it in the backup"
	case saved == nil || p.wanted(saved).stale:
		item.IP, item.Note = p.podsOwn(name, late), "its pod got it after the backup: freed with the pod"
	default:
		item.IP = p.podsOwn(name, late)
		item.IP.Spec.Reserved, item.Decide = true, true
		item.Note = fmt.Sprintf("pod %s runs with it, in the backup it is %s: reserved until you set spec.reserved to false; then it is freed with its pod", pod.Name, state(&saved.Spec))
	}
	switch existing := p.ips[name]; {
	case existing == nil:
	case existing.Spec.Pod != nil && existing.Spec.Pod.UID == pod.UID:
		item.Action, item.Note, item.Decide = plan.Same, "", false
	default:
		p.compare(&item, existing)
	}
	return item
}

// isOf reports whether a pod belongs to the owner of an address, in its namespace, and
// whether the owner may keep the address for this pod.
func isOf(spec *v1alpha1.FloatingIPSpec, pod *v1.Pod) bool {
	owner := spec.Owner
	if owner == nil || spec.Reserved || owner.Namespace != pod.Namespace ||
		owner.PodName != "" && owner.PodName != pod.Name || owner.NodeName != "" && owner.NodeName != pod.Spec.NodeName {
		return false
	}
	switch kindOf(owner) {
	case claimKind:
		return pod.Annotations[v1alpha1.AnnotationClaim] == owner.Name
	case podKind:
		return pod.Name == owner.Name
	}
	controller := metav1.GetControllerOfNoCopy(pod)
	switch {
	case controller == nil:
		return false
	case controller.Kind == owner.Kind:
		return controller.Name == owner.Name
	}
	// A ReplicaSet or Job between the pod and its Deployment, Rollout or CronJob.
	return (controller.Kind == "ReplicaSet" || controller.Kind == "Job") && strings.HasPrefix(controller.Name, owner.Name+"-")
}

// successor returns the record of an address that went to another pod of its owner.
func (p *planner) successor(saved *v1alpha1.FloatingIP, late lateHolder) *v1alpha1.FloatingIP {
	ip := saved.DeepCopy()
	spec := &ip.Spec
	takeOffPod(spec, p.input.Now)
	spec.Pod = &v1alpha1.PodReference{Name: late.pod.Name, UID: late.pod.UID}
	spec.Node, spec.Index, spec.Since, spec.KeepUntil = late.pod.Spec.NodeName, int32(late.index), saved.Spec.NextSince(p.input.Now), nil
	spec.LastPod = cmp.Or(spec.LastPod, late.pod.Name) // the owner kept it
	if uid, found := p.owners[ownerName{kindOf(spec.Owner), spec.Owner.Namespace, spec.Owner.Name}]; found {
		spec.Owner.UID = uid
	}
	spec.Owner.NamespaceUID = "" // The pod's namespace may have another UID than the one in the backup.
	return ip
}

// podsOwn returns the record of an address with the pod itself as the owner: no other
// owner was recorded, and none is guessed.
func (p *planner) podsOwn(name string, late lateHolder) *v1alpha1.FloatingIP {
	addr, _ := v1alpha1.AddrOf(name) // wired has read it
	pod := late.pod
	owner := podrequest.PodItself(pod.Namespace, pod.Name, pod.UID)
	spec := v1alpha1.FloatingIPSpec{
		Address: addr.String(), Index: int32(late.index),
		Owner:         &owner,
		Pod:           &v1alpha1.PodReference{Name: pod.Name, UID: pod.UID},
		Node:          pod.Spec.NodeName,
		ReleasePolicy: v1alpha1.ReleasePodDeleted, Since: new(v1alpha1.FloatingIPSpec).NextSince(p.input.Now),
	}
	if pool := p.poolOf(addr); pool != nil {
		spec.Pool, spec.ExternallyAssigned = pool.Name, pool.ExternalAssigner
		spec.Network = pool.Network()
	}
	return &v1alpha1.FloatingIP{TypeMeta: typeOf("FloatingIP"), ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
}
