// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
)

// way is how the pods get their network.
type way struct {
	title string
	// berth says that Berth is installed, and floating that each pod asks for a floating IP.
	berth, floating bool
}

// ways returns what is compared; the others are compared with the first.
func ways() []way {
	return []way{
		{title: "upstream's bridge plugin, without Berth"},
		{title: "the same plugin through Berth", berth: true},
		{title: "a floating IP for each pod", berth: true, floating: true},
	}
}

// label names the Deployment of a pod.
const label = "rollout"

// deployment returns a Deployment of pods that do nothing, so that what is measured is how
// they start: they have one container, and no volume.
func (w way) deployment(name string, replicas int) *appsv1.Deployment {
	labels := map[string]string{label: name}
	pod := v1.PodSpec{
		AutomountServiceAccountToken: ptr.To(false),
		Containers:                   []v1.Container{{Name: "pause", Image: lab.PauseImage, ImagePullPolicy: v1.PullNever}},
	}
	if w.floating {
		pod.SchedulerName = "berth-scheduler"
		pod.Containers[0].Resources.Limits = v1.ResourceList{v1alpha1.ResourceIP: resource.MustParse("1")}
	}
	template := metav1.ObjectMeta{Labels: labels}
	if w.floating {
		template.Annotations = map[string]string{v1alpha1.AnnotationReleasePolicy: string(v1alpha1.ReleaseRetain)}
	}
	one := ptr.To(intstr.FromInt32(1))
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Strategy: appsv1.DeploymentStrategy{RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: one, MaxUnavailable: one}},
			Replicas: ptr.To(int32(replicas)), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: v1.PodTemplateSpec{ObjectMeta: template, Spec: pod},
		},
	}
}

// The lab's floating subnet has 248 addresses only, so that the benchmark brings its own. It is
// on the same segment, and the router has the gateway's address.
const (
	floatingSubnet  = "10.0.80.0/20"
	floatingGateway = "10.0.80.1"
	floatingRange   = "10.0.80.10-10.0.95.250"
)

// pool has enough addresses for all nodes of a lab.
func pool() *v1alpha1.IPPool {
	return &v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: "rollout"},
		Spec: v1alpha1.IPPoolSpec{
			Subnet: floatingSubnet, Gateway: floatingGateway, Ranges: []string{floatingRange},
			NodeSubnets: []string{lab.DefaultNetwork().Nodes.String()}, Cooldown: &metav1.Duration{},
		},
	}
}

const (
	// network is the name of the ordinary pods' network: host-local keeps its leases in a
	// folder of that name.
	network = "rollout"
	// conf is the file of its configuration on a node. It comes before the one that labs
	// have, and after Berth's.
	conf = "/etc/cni/net.d/05-rollout.conflist"
)

// bridge returns the CNI configuration of ordinary pods on a node: upstream's plugins bridge
// and host-local.
func bridge(node *lab.Node) string {
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": %q, "plugins": [{
  "type": "bridge", "bridge": "cni0", "isGateway": true,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}
}]}
`, network, node.PodSubnet)
}
