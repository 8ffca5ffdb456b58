// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/witness"
)

const berthScheduler = "berth-scheduler"

type option func(*v1.Pod)

// pod builds a pod of the default network that answers every HTTP request with
// its UID.
func (s *stage) pod(name string, options ...option) *v1.Pod {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.name, Labels: map[string]string{"app": name, "stage": s.name}, Annotations: map[string]string{}},
		Spec: v1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](1),
			Containers: []v1.Container{{
				Name: "main", Image: lab.AgnhostImage, ImagePullPolicy: v1.PullNever, Args: []string{"porter"},
				Env: []v1.EnvVar{{
					Name:      "SERVE_PORT_" + witness.Port,
					ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.uid"}},
				}},
				ReadinessProbe: &v1.Probe{
					ProbeHandler:  v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/", Port: intstr.Parse(witness.Port)}},
					PeriodSeconds: 1,
				},
			}},
		},
	}
	for _, set := range options {
		set(pod)
	}
	return pod
}

// requesting makes the pod ask for a floating IP, and whoever schedules it is
// another matter.
func requesting(pod *v1.Pod) {
	pod.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1alpha1.ResourceIP: resource.MustParse("1")}
}

// floating makes the pod have an address of the stage's pools.
func (s *stage) floating(pod *v1.Pod) {
	requesting(pod)
	pod.Spec.SchedulerName = berthScheduler
	pod.Annotations[v1alpha1.AnnotationPools] = strings.Join(s.pools, ",")
}

// number makes the pod have several addresses, once it asks for any.
func number(n int64) option {
	return func(pod *v1.Pod) {
		pod.Spec.Containers[0].Resources.Limits[v1alpha1.ResourceIP] = *resource.NewQuantity(n, resource.DecimalSI)
	}
}

// annotated says more about the addresses that the pod asks for.
func annotated(name, value string) option {
	return func(pod *v1.Pod) { pod.Annotations[name] = value }
}

// retaining keeps the address for the pod's workload.
func retaining(pod *v1.Pod) {
	pod.Annotations[v1alpha1.AnnotationReleasePolicy] = string(v1alpha1.ReleaseRetain)
}

// on leaves the scheduler one node.
func on(node string) option {
	return func(pod *v1.Pod) { pod.Spec.NodeSelector = map[string]string{v1.LabelHostname: node} }
}

// preferably has the scheduler bind the pod to a node as long as that is there.
func preferably(node string) option {
	return func(pod *v1.Pod) {
		pod.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.PreferredSchedulingTerm{{
			Weight: 100, Preference: hostname(v1.NodeSelectorOpIn, node),
		}}}}
	}
}

// notOn keeps the pod from a node.
func notOn(node string) option {
	return func(pod *v1.Pod) {
		pod.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{
			NodeSelectorTerms: []v1.NodeSelectorTerm{hostname(v1.NodeSelectorOpNotIn, node)},
		}}}
	}
}

func hostname(operator v1.NodeSelectorOperator, node string) v1.NodeSelectorTerm {
	return v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: operator, Values: []string{node}}}}
}

// bound leaves no scheduler a choice.
func bound(node string) option {
	return func(pod *v1.Pod) { pod.Spec.NodeName = node }
}

// Ports of pods made with netexec.
const udpPort = "8081"

// netexec makes the pod answer what upstream's test server does, on TCP, UDP
// and both families.
func netexec(pod *v1.Pod) {
	c := &pod.Spec.Containers[0]
	c.Args, c.Env = []string{"netexec", "--http-port=" + witness.Port, "--udp-port=" + udpPort}, nil
}

func (s *stage) create(pod *v1.Pod) *v1.Pod {
	s.t.Helper()
	created, err := s.Client.CoreV1().Pods(s.name).Create(s.ctx, pod, metav1.CreateOptions{})
	s.must(err)
	return created
}

// start creates a pod and waits until it is Ready.
func (s *stage) start(name string, options ...option) *v1.Pod {
	s.t.Helper()
	return s.ready(s.create(s.pod(name, options...)).Name)
}

func (s *stage) ready(name string) *v1.Pod {
	s.t.Helper()
	return s.wait(name, witness.BecomesReady)
}

func (s *stage) wait(name string, condition witness.Condition) *v1.Pod {
	s.t.Helper()
	pod, err := s.Pod(s.ctx, s.name, name, condition)
	s.must(err)
	return pod
}

// get returns the pod as the API has it.
func (s *stage) get(name string) *v1.Pod {
	s.t.Helper()
	pod, err := s.Client.CoreV1().Pods(s.name).Get(s.ctx, name, metav1.GetOptions{})
	s.must(err)
	return pod
}

// delete deletes pods and waits until they are gone.
func (s *stage) delete(names ...string) {
	s.t.Helper()
	for _, name := range names {
		s.must(s.Client.CoreV1().Pods(s.name).Delete(s.ctx, name, metav1.DeleteOptions{}))
	}
	s.must(s.Pods(s.ctx, s.name, "", "gone", func(pods []*v1.Pod) bool {
		return !slices.ContainsFunc(pods, func(pod *v1.Pod) bool { return slices.Contains(names, pod.Name) })
	}))
}

// statefulSet makes a StatefulSet of such pods and waits until they are Ready.
func (s *stage) statefulSet(template *v1.Pod, replicas int) []*v1.Pod {
	s.t.Helper()
	s.createStatefulSet(template, replicas)
	var pods []*v1.Pod
	for i := range replicas {
		pods = append(pods, s.ready(fmt.Sprintf("%s-%d", template.Name, i)))
	}
	return pods
}

func (s *stage) createStatefulSet(template *v1.Pod, replicas int) {
	s.t.Helper()
	set := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: template.Name, Namespace: s.name},
		Spec: appsv1.StatefulSetSpec{
			Replicas: ptr.To(int32(replicas)), ServiceName: template.Name, PodManagementPolicy: appsv1.ParallelPodManagement,
			Selector: &metav1.LabelSelector{MatchLabels: template.Labels},
			Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: template.Labels, Annotations: template.Annotations}, Spec: template.Spec},
		},
	}
	_, err := s.Client.AppsV1().StatefulSets(s.name).Create(s.ctx, set, metav1.CreateOptions{})
	s.must(err)
}

// moveTo has a StatefulSet's pods run on another node.
func (s *stage) moveTo(set, node string) {
	s.t.Helper()
	s.kubectl("-n", s.name, "patch", "statefulset", set, "-p", `{"spec":{"template":{"spec":{"nodeSelector":{"kubernetes.io/hostname":"`+node+`"}}}}}`)
}

// wired says that the node has given the pod its network; its containers may not run yet.
var wired = witness.Condition{Name: "wired", Holds: func(pod *v1.Pod) bool { return len(pod.Status.PodIPs) > 0 }}

// successor is the next pod of this name.
func successor(old *v1.Pod) witness.Condition {
	return witness.Condition{Name: "created anew and Ready", Holds: func(pod *v1.Pod) bool {
		return pod.UID != old.UID && witness.Ready(pod)
	}}
}

// answers waits until the pod answers at its address, as itself.
func (s *stage) answers(pod *v1.Pod) {
	s.t.Helper()
	s.must(s.AskUntil(s.ctx, pod.Status.PodIP, string(pod.UID)))
}
