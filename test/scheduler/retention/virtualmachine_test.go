// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/customkind"
)

// The kinds of KubeVirt, which have no scale subresource.
var (
	machineKind  = customkind.Kind{GVK: schema.GroupVersionKind{Group: "kubevirt.io", Version: "v1", Kind: "VirtualMachine"}, Resource: "virtualmachines", Scaleless: true}
	instanceKind = customkind.Kind{GVK: schema.GroupVersionKind{Group: "kubevirt.io", Version: "v1", Kind: "VirtualMachineInstance"}, Resource: "virtualmachineinstances", Scaleless: true}
)

// machines are what KubeVirt makes: an instance for each run of a machine, and a pod of it.
type machines struct{ *simulation.World }

func (m machines) create(kind customkind.Kind, name string, controller *unstructured.Unstructured, annotations map[string]any) *unstructured.Unstructured {
	m.T.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": map[string]any{"metadata": map[string]any{"annotations": annotations}}}}}
	object.SetGroupVersionKind(kind.GVK)
	object.SetName(name)
	if controller != nil {
		object.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(controller, controller.GroupVersionKind())})
	}
	made, err := m.Dynamic.Resource(kind.GVR()).Namespace(simulation.Namespace).Create(m.Ctx, object, metav1.CreateOptions{})
	if err != nil {
		m.T.Fatal(err)
	}
	return made
}

func (m machines) delete(kind customkind.Kind, name string) {
	m.T.Helper()
	if err := m.Dynamic.Resource(kind.GVR()).Namespace(simulation.Namespace).Delete(m.Ctx, name, metav1.DeleteOptions{}); err != nil {
		m.T.Fatal(err)
	}
}

// launcher is a pod of an instance.
func launcher(name string, instance *unstructured.Unstructured, options ...func(*v1.Pod)) *v1.Pod {
	pod := simulation.NewPod(name, append(options, simulation.Policy(v1alpha1.ReleaseRetain))...)
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(instance, instance.GroupVersionKind())}
	return pod
}

// A virtual machine has its address after a stop and a start, a live migration waits for it unless
// the machine may have two, and the address goes with the machine.
func TestVirtualMachine(t *testing.T) {
	t.Parallel()
	w := simulation.NewWith(t, simulation.Options{Patience: time.Minute, ControlPlaneOptions: lab.ControlPlaneOptions{Controllers: true}})
	m := machines{w}
	w.Nodes(2)
	w.DefineKinds([]customkind.Kind{machineKind, instanceKind})
	w.Pool("web", "10.0.70.10-10.0.70.19", func(pool *v1alpha1.IPPool) { pool.Spec.Cooldown = &metav1.Duration{} })
	w.Kubelet()
	w.Scheduler(simulation.SchedulerOptions{})
	w.Controller()

	machine := m.create(machineKind, "vm", nil, map[string]any{})
	instance := m.create(instanceKind, "vm", machine, nil)
	w.Create(launcher("virt-launcher-vm-aaaaa", instance))
	w.Bound("virt-launcher-vm-aaaaa")
	address := w.Address("virt-launcher-vm-aaaaa")
	ip, err := w.Berth.FloatingIPs.Get(w.Ctx, address, metav1.GetOptions{})
	if err != nil || ip.Spec.Owner.Kind != "VirtualMachine" || ip.Spec.Owner.UID != machine.GetUID() {
		t.Fatalf("%v: the owner of %s is %+v, want the VirtualMachine", err, address, ip.Spec.Owner)
	}

	// A live migration makes another pod of the same instance.
	w.Create(launcher("virt-launcher-vm-bbbbb", instance))
	w.Refused("virt-launcher-vm-bbbbb", `VirtualMachine "vm" has all 1 address that it keeps`)
	w.Delete("virt-launcher-vm-bbbbb")

	// Stop and start.
	w.Delete("virt-launcher-vm-aaaaa")
	m.delete(instanceKind, "vm")
	w.Eventually("wait for the address to be retained", func() error {
		ip, err := w.Berth.FloatingIPs.Get(w.Ctx, address, metav1.GetOptions{})
		if err == nil && ip.Spec.Pod != nil {
			err = fmt.Errorf("pod %s has it", ip.Spec.Pod.Name)
		}
		return err
	})
	instance = m.create(instanceKind, "vm", machine, nil)
	w.Create(launcher("virt-launcher-vm-ccccc", instance))
	w.Bound("virt-launcher-vm-ccccc")
	if again := w.Address("virt-launcher-vm-ccccc"); again != address {
		t.Errorf("the machine has %s after it was started again, want %s", again, address)
	}

	// A machine that may have two.
	spare := simulation.Annotated(v1alpha1.AnnotationSpareAddresses, "1")
	two := m.create(machineKind, "two", nil, map[string]any{v1alpha1.AnnotationSpareAddresses: "1"})
	migrates := m.create(instanceKind, "two", two, nil)
	w.Create(launcher("virt-launcher-two-aaaaa", migrates, spare))
	w.Bound("virt-launcher-two-aaaaa")
	w.Create(launcher("virt-launcher-two-bbbbb", migrates, spare))
	w.Bound("virt-launcher-two-bbbbb")

	w.Delete("virt-launcher-vm-ccccc")
	m.delete(instanceKind, "vm")
	m.delete(machineKind, "vm")
	w.Eventually("wait for the address of the deleted machine to be free", func() error {
		if ip, err := w.Berth.FloatingIPs.Get(w.Ctx, address, metav1.GetOptions{}); err == nil {
			return fmt.Errorf("it is %+v", ip.Spec)
		}
		return nil
	})
	w.Invariants()
}
