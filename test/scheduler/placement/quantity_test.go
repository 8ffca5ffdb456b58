// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// quotaOf limits the namespace's floating IPs by ResourceQuota ips, and waits until they
// are counted. It returns a function that reads the count.
func quotaOf(w *simulation.World, most string) (used func() int64) {
	w.T.Helper()
	const counted = "requests." + v1alpha1.ResourceIP
	_, err := w.Kube.CoreV1().ResourceQuotas(simulation.Namespace).Create(w.Ctx, &v1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "ips"},
		Spec:       v1.ResourceQuotaSpec{Hard: v1.ResourceList{counted: simulation.Quantity(most)}},
	}, metav1.CreateOptions{})
	if err != nil {
		w.T.Fatal(err)
	}
	used = func() int64 {
		w.T.Helper()
		var n int64
		w.Eventually("read the quota", func() error {
			quota, err := w.Kube.CoreV1().ResourceQuotas(simulation.Namespace).Get(w.Ctx, "ips", metav1.GetOptions{})
			if err == nil && quota.Status.Hard == nil {
				err = errors.New("not counted yet")
			}
			if err == nil {
				q := quota.Status.Used[counted]
				n = q.Value()
			}
			return err
		})
		return n
	}
	used()
	return used
}

// A pod gets as many addresses as Kubernetes counts, however they are asked for: a
// quota counts what is really taken.
func TestQuantity(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{Controllers: true})
	w.Nodes(1)
	w.Scheduler(simulation.SchedulerOptions{})
	w.Pool("web", "10.0.70.2-10.0.70.99")
	used := quotaOf(w, "1000")
	_, err := w.Kube.NodeV1().RuntimeClasses().Create(w.Ctx, &nodev1.RuntimeClass{
		ObjectMeta: metav1.ObjectMeta{Name: "gateway"}, Handler: "gateway",
		Overhead: &nodev1.Overhead{PodFixed: v1.ResourceList{v1alpha1.ResourceIP: simulation.Quantity("2")}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}

	// As users write them: limits only.
	asking := func(n string) v1.Container {
		container := v1.Container{Image: "none"}
		if n != "" {
			container.Resources.Limits = v1.ResourceList{v1alpha1.ResourceIP: simulation.Quantity(n)}
		}
		return container
	}
	sidecar := func(n string) v1.Container {
		container := asking(n)
		always := v1.ContainerRestartPolicyAlways
		container.RestartPolicy = &always
		return container
	}
	runtimeClass := "gateway"
	for _, test := range []struct {
		name    string
		inits   []v1.Container
		runs    []v1.Container
		runtime *string
		want    int64
	}{
		{name: "containers", runs: []v1.Container{asking("1"), asking(""), asking("2")}, want: 3},
		{name: "init-container", inits: []v1.Container{asking("3"), asking("2")}, runs: []v1.Container{asking("1")}, want: 3},
		{name: "sidecar", inits: []v1.Container{sidecar("1")}, runs: []v1.Container{asking("1")}, want: 2},
		{name: "sidecar-alone", inits: []v1.Container{sidecar("2")}, runs: []v1.Container{asking("")}, want: 2},
		{name: "init-container-beside-sidecar", inits: []v1.Container{sidecar("1"), asking("3")}, runs: []v1.Container{asking("1")}, want: 4},
		{name: "overhead", runs: []v1.Container{asking("1")}, runtime: &runtimeClass, want: 3},
		{name: "most", inits: []v1.Container{sidecar("4")}, runs: []v1.Container{asking("4")}, want: v1alpha1.MaxAddresses},
	} {
		pod := simulation.NewPod(test.name)
		pod.Spec.InitContainers, pod.Spec.Containers, pod.Spec.RuntimeClassName = test.inits, test.runs, test.runtime
		for i := range pod.Spec.InitContainers {
			pod.Spec.InitContainers[i].Name = fmt.Sprintf("init-%d", i)
		}
		for i := range pod.Spec.Containers {
			pod.Spec.Containers[i].Name = fmt.Sprintf("run-%d", i)
		}
		before := used()
		w.Create(pod)
		names := strings.Split(w.Address(test.name), ",")
		if n := used() - before; int64(len(names)) != test.want || n != test.want {
			t.Errorf("%s has %v, and the quota counts %d; want %d", test.name, names, n, test.want)
		}
	}
	w.Create(simulation.NewPod("too-many", func(pod *v1.Pod) {
		pod.Spec.InitContainers = []v1.Container{sidecar("4")}
		pod.Spec.InitContainers[0].Name = "sidecar"
		pod.Spec.Containers[0].Resources = asking("5").Resources
	}))
	w.Refused("too-many", "the pod requests berth.dev/ip: 9; a pod can have 8")
}
