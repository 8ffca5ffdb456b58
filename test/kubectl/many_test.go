// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/simulation"
)

// mostMemory is the memory that check may take, in MB, with as many addresses as a cluster may
// have.
const mostMemory = 500

// TestCheckMany says how long check takes, and how much memory, with many addresses that pods
// have. It limits only the memory: its numbers are for docs.
func TestCheckMany(t *testing.T) {
	const n = 150_000
	w := simulation.NewWith(t, simulation.Options{Lasts: 2 * time.Hour})
	w.Nodes(1)
	ctx := w.Ctx
	pool, err := w.Berth.IPPools.Create(ctx, &v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: "many"},
		Spec:       v1alpha1.IPPoolSpec{Subnet: "10.128.0.0/12", Ranges: []string{"10.128.0.0-10.143.255.255"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	namespace, err := w.Kube.CoreV1().Namespaces().Get(ctx, simulation.Namespace, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := w.ControlPlane.Store(ctx, func(yield func(string, any) bool) {
		addr := netip.MustParseAddr("10.128.0.1")
		for i := range n {
			addr = addr.Next()
			pod := simulation.NewPod(fmt.Sprintf("pod-%d", i))
			pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
			pod.Namespace, pod.UID, pod.CreationTimestamp = simulation.Namespace, types.UID(pod.Name), metav1.Now()
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, v1alpha1.AnnotationFloatingIPs, addr.String())
			pod.Spec.NodeName = "node1"
			if !yield("pods/"+pod.Namespace+"/"+pod.Name, pod) || !yield(simulation.Stored(addr, v1alpha1.FloatingIPSpec{
				Pool: pool.Name, Node: "node1", ReleasePolicy: v1alpha1.ReleasePodDeleted, Network: &v1alpha1.Network{Subnet: pool.Spec.Subnet},
				Owner: &v1alpha1.Owner{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, NamespaceUID: namespace.UID, Name: pod.Name, UID: pod.UID, PodName: pod.Name},
				Pod:   &v1alpha1.PodReference{Name: pod.Name, UID: pod.UID},
			})) {
				return
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d addresses and pods created in %s", n, time.Since(began).Round(time.Second))
	capacity := 1<<20 - 2
	status := fmt.Sprintf(`{"status":{"observedGeneration":1,"capacity":%d,"allocated":%d,"free":%d,"conditions":[
		{"type":"Ready","status":"True","reason":"Valid","message":"The scheduler allocates from the pool.","observedGeneration":1,"lastTransitionTime":"2026-01-01T00:00:00Z"},
		{"type":"Exhausted","status":"False","reason":"AddressesFree","message":"There are free addresses.","observedGeneration":1,"lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`, capacity, n, capacity-n)
	if _, err := w.Berth.IPPools.Patch(ctx, pool.Name, types.MergePatchType, []byte(status), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		command := exec.CommandContext(ctx, simulation.Plugin(t), "check", "--agents=false", "--kubeconfig="+w.ControlPlane.Kubeconfig())
		began := time.Now()
		out, err := command.CombinedOutput()
		usage, _ := command.ProcessState.SysUsage().(*syscall.Rusage)
		t.Logf("%d addresses: %s, %s of CPU, %d MB\n%s", n, time.Since(began).Round(100*time.Millisecond), (command.ProcessState.UserTime() + command.ProcessState.SystemTime()).Round(100*time.Millisecond), usage.Maxrss/1024, out)
		if usage.Maxrss/1024 > mostMemory {
			t.Errorf("check took %d MB, want at most %d", usage.Maxrss/1024, mostMemory)
		}
		if err != nil || !strings.Contains(string(out), fmt.Sprintf("Nothing was found in %d addresses, %d pods", n, n)) {
			t.Errorf("%v: %s", err, out)
		}
	}
}
