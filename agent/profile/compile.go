// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/shaping"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Annotations by which Kubernetes limits the bandwidth of a pod, in bits per second.
const (
	AnnotationIngress = "kubernetes.io/ingress-bandwidth"
	AnnotationEgress  = "kubernetes.io/egress-bandwidth"
)

// Capability is the CNI capability by which the runtime passes these annotations to a
// plugin.
const Capability = "bandwidth"

// Container is the network of a container, whose traffic may have limits.
type Container struct {
	Pod api.Pod
	// Annotations of the pod, if Known.
	Annotations map[string]string
	// Known says that the pod's annotations are known; otherwise the pod's limits stay unchanged.
	Known bool
	// Attaching says that interfaces may still be missing.
	Attaching bool
	NetNS     string
	// Interfaces are the names of the container's interfaces.
	Interfaces []string
	// Addresses of the container, of all interfaces.
	Addresses []netip.Addr
	// ByPlugin says that a plugin enforces Kubernetes' annotations.
	ByPlugin bool
}

// Reasons of events. docs/reference/events.md is made of the comments.
const (
	// EventNotFound (Warning on Pod): the pod or its namespace names a NetworkProfile that does not
	// exist; the pod runs without it. Do: create the profile, or correct the annotation.
	EventNotFound = "NetworkProfileNotFound"
	// EventNotAllowed (Warning on Pod): the NetworkProfile is not for the pod's namespace; the pod
	// runs without it. Do: choose another, or change the profile's namespaceSelector.
	EventNotAllowed = "NetworkProfileNotAllowed"
	// EventInvalid (Warning on Pod): an annotation, or a value of the NetworkProfile, cannot be read
	// and is ignored. Do: correct it as the note says.
	EventInvalid = "InvalidBandwidth"
	// EventNotEnforced (Warning on Pod): the node cannot enforce a limit of the pod. Do: see
	// docs/how-to/troubleshooting.md#a-pods-bandwidth-is-not-what-it-should-be.
	EventNotEnforced = "BandwidthNotEnforced"
)

// problem says why a pod lacks a requested limit.
type problem struct {
	reason, note string
}

// namespace is the relevant part of a namespace.
type namespace struct {
	labels  map[string]string
	profile string
}

// objects has the objects that the watches have seen.
type objects struct {
	// namespaces and profiles by name; profiles is nil until their watch has synced.
	namespaces map[string]namespace
	profiles   map[string]*v1alpha1.NetworkProfile
}

// compile returns the limits and the DSCP of the container's pod, without links. It returns false
// if they are not known. A pod's annotations can only lower limits and choose among the profiles of
// its namespace, so the pod's author cannot exceed the profiles.
func (o *objects) compile(c Container) (pod shaping.Pod, problems []problem, known bool) {
	pod = shaping.Pod{ID: c.Pod.UID, Addresses: c.Addresses}
	ns, seen := o.namespaces[c.Pod.Namespace]
	if !c.Known || !seen {
		return pod, nil, false
	}
	wanted := c.Annotations[v1alpha1.AnnotationNetworkProfile]
	if (wanted != "" || ns.profile != "") && o.profiles == nil {
		return pod, nil, false
	}
	p, problems := o.choose(c.Pod.Namespace, ns, wanted)
	if p != nil {
		problems = append(problems, apply(p, &pod)...)
	}
	if c.ByPlugin {
		return pod, problems, true
	}
	for annotation, limit := range map[string]*shaping.Limit{AnnotationIngress: &pod.Ingress, AnnotationEgress: &pod.Egress} {
		value := c.Annotations[annotation]
		if value == "" {
			continue
		}
		rate, err := parseRate(value)
		if err != nil {
			problems = append(problems, problem{EventInvalid, fmt.Sprintf("The annotation %s is ignored: %v", annotation, err)})
			continue
		}
		*limit = shaping.Lower(*limit, shaping.Limit{Rate: rate})
	}
	slices.SortFunc(problems, func(x, y problem) int { return strings.Compare(x.note, y.note) })
	return pod, problems, true
}

// choose returns the profile of a pod: the profile that the pod names, if allowed, or else the
// profile of its namespace.
func (o *objects) choose(name string, ns namespace, wanted string) (p *v1alpha1.NetworkProfile, problems []problem) {
	instead := "the pod has no profile"
	if ns.profile != "" {
		instead = fmt.Sprintf("the pod has the profile %q of its namespace", ns.profile)
	}
	if wanted != "" {
		p := o.profiles[wanted]
		switch {
		case wanted == ns.profile: // below
		case p == nil:
			problems = append(problems, problem{EventNotFound, fmt.Sprintf("There is no NetworkProfile %q, which the annotation %s names; %s", wanted, v1alpha1.AnnotationNetworkProfile, instead)})
		default:
			admits, err := admits(p, ns)
			if err == nil && admits {
				return p, nil
			}
			note := fmt.Sprintf("NetworkProfile %q is not for pods of namespace %q (its namespaceSelector); %s", wanted, name, instead)
			if err != nil {
				note = fmt.Sprintf("NetworkProfile %q has a namespaceSelector that cannot be read (%v); %s", wanted, err, instead)
			}
			problems = append(problems, problem{EventNotAllowed, note})
		}
	}
	if ns.profile == "" {
		return nil, problems
	}
	if p = o.profiles[ns.profile]; p == nil {
		problems = append(problems, problem{EventNotFound, fmt.Sprintf("There is no NetworkProfile %q, which the annotation %s of namespace %q names; the pod has no profile", ns.profile, v1alpha1.AnnotationNetworkProfile, name)})
	}
	return p, problems
}

func admits(p *v1alpha1.NetworkProfile, ns namespace) (bool, error) {
	if p.Spec.NamespaceSelector == nil {
		return true, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(p.Spec.NamespaceSelector)
	if err != nil {
		return false, err
	}
	return selector.Matches(labels.Set(ns.labels)), nil
}

// apply gives the pod the limits of its profile. The API server has checked the values by the CRD,
// which may have another version.
func apply(p *v1alpha1.NetworkProfile, pod *shaping.Pod) (problems []problem) {
	read := func(field string, from *v1alpha1.BandwidthLimit) shaping.Limit {
		limit, err := limitOf(from)
		if err != nil {
			problems = append(problems, problem{EventInvalid, fmt.Sprintf("NetworkProfile %q: spec.%s is ignored: %v", p.Name, field, err)})
		}
		return limit
	}
	ingress, egress := read("ingress", p.Spec.Ingress), read("egress", p.Spec.Egress)
	if p.Spec.Scope == v1alpha1.ScopeNode {
		pod.Group = &shaping.Group{Name: p.Name, Ingress: ingress, Egress: egress}
	} else {
		pod.Ingress, pod.Egress = ingress, egress
	}
	if d := p.Spec.DSCP; d != nil {
		if *d < 0 || *d > shaping.MaxDSCP {
			return append(problems, problem{EventInvalid, fmt.Sprintf("NetworkProfile %q: spec.dscp is ignored: %d is not from 0 to %d", p.Name, *d, shaping.MaxDSCP)})
		}
		pod.DSCP = new(uint8(*d))
	}
	return problems
}

func limitOf(l *v1alpha1.BandwidthLimit) (shaping.Limit, error) {
	if l == nil {
		return shaping.Limit{}, nil
	}
	rate, err := checkRate(l.Rate)
	if err != nil {
		return shaping.Limit{}, err
	}
	limit := shaping.Limit{Rate: rate}
	if l.Burst != nil {
		burst := l.Burst.Value()
		if burst < 1 || burst > shaping.MaxBurst {
			return shaping.Limit{}, fmt.Errorf("the burst %s is not from 1 to %d bytes", l.Burst, uint64(shaping.MaxBurst))
		}
		limit.Burst = uint64(burst)
	}
	return limit, nil
}

// parseRate reads bits per second as the kubelet and runtimes do.
func parseRate(text string) (uint64, error) {
	quantity, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, fmt.Errorf("%.50q is not a quantity of bits per second, such as 100M", text)
	}
	return checkRate(quantity)
}

func checkRate(rate resource.Quantity) (uint64, error) {
	if rate.Cmp(*resource.NewQuantity(shaping.MinRate, resource.DecimalSI)) < 0 || rate.Cmp(*resource.NewQuantity(shaping.MaxRate, resource.DecimalSI)) > 0 {
		return 0, fmt.Errorf("the rate %s is not from 1k to 1P bits per second", rate.String())
	}
	return uint64(rate.Value()), nil
}

// wantsNothing reports whether the pod needs nothing in the kernel.
func wantsNothing(p shaping.Pod) bool {
	none := shaping.Limit{}
	return p.Ingress == none && p.Egress == none && p.DSCP == nil && (p.Group == nil || p.Group.Ingress == none && p.Group.Egress == none)
}
