// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/customkind"
)

// The kinds of KubeVirt, which have no scale subresource.
var (
	machineKind   = customkind.Kind{GVK: schema.GroupVersionKind{Group: "kubevirt.io", Version: "v1", Kind: "VirtualMachine"}, Resource: "virtualmachines", Scaleless: true}
	migrationKind = customkind.Kind{GVK: schema.GroupVersionKind{Group: "kubevirt.io", Version: "v1", Kind: "VirtualMachineInstanceMigration"}, Resource: "virtualmachineinstancemigrations", Scaleless: true}
	instanceKind  = customkind.Kind{GVK: schema.GroupVersionKind{Group: "kubevirt.io", Version: "v1", Kind: "VirtualMachineInstance"}, Resource: "virtualmachineinstances", Scaleless: true}
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
	pod := simulation.NewPod(name, append([]func(*v1.Pod){simulation.Policy(v1alpha1.ReleaseRetain)}, options...)...)
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

// migrate makes a migration and its target pod, as virt-controller does.
func (m machines) migrate(name string, instance *unstructured.Unstructured, options ...func(*v1.Pod)) {
	m.T.Helper()
	migration := m.create(migrationKind, name, nil, nil)
	m.Create(launcher(name, instance, append(options, targetOf(string(migration.GetUID())))...))
}

// targetOf makes a pod the target of a migration.
func targetOf(migration string) func(*v1.Pod) {
	return func(pod *v1.Pod) { pod.Labels = map[string]string{v1alpha1.LabelMigration: migration} }
}

// say writes an annotation of a pod as berth-controller and virt-controller do.
func (m machines) say(pod, annotation, value string) {
	m.T.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, annotation, value)
	if _, err := m.Kube.CoreV1().Pods(simulation.Namespace).Patch(m.Ctx, pod, types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		m.T.Fatal(err)
	}
}

// becomes waits until an address has this holder and this twin, on their nodes.
func (m machines) becomes(address, holder, twin string) (version string) {
	m.T.Helper()
	m.Eventually(fmt.Sprintf("wait for %s to be with %s, and with %s as its twin", address, holder, twin), func() error {
		ip, err := m.Berth.FloatingIPs.Get(m.Ctx, address, metav1.GetOptions{})
		if err != nil {
			return err
		}
		isOn := func(pod, node string) bool {
			now, err := m.Kube.CoreV1().Pods(simulation.Namespace).Get(m.Ctx, pod, metav1.GetOptions{})
			return err == nil && now.Spec.NodeName == node
		}
		var has, other string
		if ip.Spec.Pod != nil && isOn(ip.Spec.Pod.Name, ip.Spec.Node) {
			has = ip.Spec.Pod.Name
		}
		if ip.Spec.Twin != nil && isOn(ip.Spec.Twin.Pod.Name, ip.Spec.Twin.Node) {
			other = ip.Spec.Twin.Pod.Name
		}
		if version = ip.ResourceVersion; has != holder || other != twin {
			return fmt.Errorf("it is with %q, and the twin is %q: %+v", has, other, ip.Spec)
		}
		return nil
	})
	return version
}

// finish ends a pod as its kubelet does when the guest left.
func (m machines) finish(pod string) {
	m.T.Helper()
	if err := m.SetPhase(m.Get(pod), v1.PodSucceeded); err != nil {
		m.T.Fatal(err)
	}
}

// A virtual machine moves with its address, there and back. A migration that fails leaves it where
// it was, and a pod that only says that it is a target gets nothing.
func TestLiveMigration(t *testing.T) {
	t.Parallel()
	w := simulation.NewWith(t, simulation.Options{Patience: time.Minute, ControlPlaneOptions: lab.ControlPlaneOptions{Controllers: true}})
	w.Nodes(3)
	w.DefineKinds([]customkind.Kind{machineKind, instanceKind, migrationKind})
	// The pool does not serve node3.
	w.Pool("web", "10.0.70.10-10.0.70.19", func(pool *v1alpha1.IPPool) {
		pool.Spec.Cooldown = &metav1.Duration{}
		pool.Spec.NodeSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: v1.LabelHostname, Operator: metav1.LabelSelectorOpNotIn, Values: []string{"node3"}}}}
	})
	w.Kubelet()
	w.Scheduler(simulation.SchedulerOptions{})
	w.Controller()
	for _, policy := range []v1alpha1.ReleasePolicy{v1alpha1.ReleaseRetain, v1alpha1.ReleasePodDeleted} {
		t.Run(string(policy), func(t *testing.T) {
			w := w.On(t)
			m := machines{w}
			name := strings.ToLower(string(policy))
			under := simulation.Policy(policy)
			pod := func(n string) string { return name + "-" + n }
			machine := m.create(machineKind, name, nil, map[string]any{})
			instance := m.create(instanceKind, name, machine, nil)
			w.Create(launcher(pod("aaaaa"), instance, under))
			address := w.Address(pod("aaaaa"))

			w.Create(launcher(pod("poser"), instance, under, targetOf("no-such-migration")))
			w.Eventually("wait for the poser to be refused", func() error {
				if texts := fmt.Sprint(simulation.ConditionTexts(w.Get(pod("poser")))); !strings.Contains(texts, `"no-such-migration" not found`) {
					return fmt.Errorf("it says %s", texts)
				}
				return nil
			})
			w.Delete(pod("poser"))

			// The agent of the target's node says that it answers.
			m.migrate(pod("bbbbb"), instance, under)
			if got := w.Address(pod("bbbbb")); got != address {
				t.Fatalf("the target has %s, want %s", got, address)
			}
			version := m.becomes(address, pod("aaaaa"), pod("bbbbb"))
			m.say(pod("bbbbb"), v1alpha1.AnnotationTookOver, version)
			m.becomes(address, pod("bbbbb"), pod("aaaaa"))
			m.finish(pod("aaaaa"))
			m.becomes(address, pod("bbbbb"), "")

			// Back, where KubeVirt says that the machine runs.
			m.migrate(pod("ccccc"), instance, under)
			m.becomes(address, pod("bbbbb"), pod("ccccc"))
			m.say(pod("ccccc"), v1alpha1.AnnotationMigrated, "2030-01-02T03:04:05Z")
			m.becomes(address, pod("ccccc"), pod("bbbbb"))
			// The next migration waits for the end of this one.
			m.migrate(pod("ddddd"), instance, under)
			w.Refused(pod("ddddd"), "already moves to or from pod")
			m.finish(pod("bbbbb"))
			m.becomes(address, pod("ccccc"), pod("ddddd"))

			// It fails, before and after the cut.
			m.finish(pod("ddddd"))
			m.becomes(address, pod("ccccc"), "")
			m.migrate(pod("eeeee"), instance, under)
			m.say(pod("eeeee"), v1alpha1.AnnotationTookOver, m.becomes(address, pod("ccccc"), pod("eeeee")))
			m.becomes(address, pod("eeeee"), pod("ccccc"))
			w.Delete(pod("eeeee"))
			m.becomes(address, pod("ccccc"), "")
			w.Invariants()

			// The machine stops while it moves.
			m.migrate(pod("fffff"), instance, under)
			m.becomes(address, pod("ccccc"), pod("fffff"))
			w.Delete(pod("ccccc"), pod("fffff"))
			want := map[v1alpha1.ReleasePolicy]string{v1alpha1.ReleaseRetain: "kept", v1alpha1.ReleasePodDeleted: "free"}[policy]
			w.Eventually("wait for the address to be "+want, func() error { return w.Becomes(address, want) })
			w.Invariants()
		})
	}
}
