// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/cmd/kubectl-berth/transfer/galaxyimport"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/galaxy"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// The objects that "kubectl berth import-galaxy -o yaml" prints have no UIDs of claims
// that do not exist yet. Made by "kubectl create -f -", while the controller runs,
// the addresses get the claim of that name as their owner.
func TestImportGalaxyPrinted(t *testing.T) {
	t.Parallel()
	g := newGalaxyCluster(t)
	g.permit()
	g.Create(simulation.NewPod("pooled", ofGalaxy(map[string]string{galaxy.AnnotationPool: "front"})))
	g.record("10.0.71.3", "pool__front_NULL_default_NULL_pooled", galaxy.PolicyNever, g.bind("pooled", "10.0.71.3"))
	g.record("10.0.71.4", "pool__front_", galaxy.PolicyNever, nil)
	g.apply(`{"apiVersion":"galaxy.k8s.io/v1alpha1","kind":"Pool","metadata":{"namespace":"kube-system","name":"front"},"size":3,"preAllocateIP":true}`)
	g.Controller()
	g.Scheduler(simulation.SchedulerOptions{})

	printed := g.kubectl("", "berth", "import-galaxy", "--dry-run", "-o", "yaml")
	if n := strings.Count(printed, "uid: "+string(galaxyimport.NilUID)); n != 2 {
		t.Fatalf("%d of the objects have an owner without a UID, want 2:\n%s", n, printed)
	}
	g.kubectl(printed, "create", "-f", "-")
	claim, err := g.Berth.IPClaims(simulation.Namespace).Get(g.Ctx, "front", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ownedBy := func(uid types.UID, addrs ...string) error {
		for _, addr := range addrs {
			ip, err := g.Berth.FloatingIPs.Get(g.Ctx, addr, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if ip.Spec.Owner == nil || ip.Spec.Owner.UID != uid {
				return fmt.Errorf("%s has the owner %+v, want UID %s", addr, ip.Spec.Owner, uid)
			}
		}
		return nil
	}
	g.Eventually("wait for the claim to adopt its addresses", func() error { return ownedBy(claim.UID, "10.0.71.3", "10.0.71.4") })
	want := map[string]string{
		"10.0.71.3": "IPClaim front, pod pooled on node1, Never, in galaxy-10.0.71.2",
		"10.0.71.4": "IPClaim front, Never, in galaxy-10.0.71.2",
	}
	g.wantHeld(want)
	if plan, _ := g.importGalaxy(0, "--dry-run"); !strings.Contains(plan, "FloatingIP: 2 same") || !strings.Contains(plan, "IPClaim:    1 same") {
		t.Errorf("imported again:\n%s", plan)
	}

	// The claim has room for one more, which it preallocates when it can.
	g.enable("galaxy-10.0.70.2", "galaxy-10.0.71.2")
	counts := func(allocated, retained int64) {
		t.Helper()
		g.Eventually(fmt.Sprintf("wait for the claim to have %d and %d addresses", allocated, retained), func() error {
			claim, err := g.Berth.IPClaims(simulation.Namespace).Get(g.Ctx, "front", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if claim.Status.Allocated != allocated || claim.Status.Retained != retained {
				return fmt.Errorf("%+v", claim.Status)
			}
			return nil
		})
	}
	counts(1, 2)
	// Its pods get what it had, before anything else.
	ofFront := func(pod *v1.Pod) {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, v1alpha1.AnnotationClaim, "front")
	}
	g.Create(simulation.NewPod("next", ofFront))
	if got := g.Address("next"); got != "10.0.71.4" {
		t.Errorf("the next pod of the claim got %s, want 10.0.71.4, its oldest without a pod", got)
	}
	g.Create(simulation.NewPod("last", ofFront), simulation.NewPod("more", ofFront))
	g.Eventually("wait for all addresses of the claim to be in use", func() error {
		if n, err := g.boundOf("last", "more"); err != nil || n != 1 {
			return fmt.Errorf("%d pods are bound, %w", n, err)
		}
		return nil
	})
	counts(3, 0)
	// That of Galaxy's pod, which goes at last, is one of them.
	g.Delete("pooled")
	if got := g.Bound("last", "more"); got[0].Annotations[v1alpha1.AnnotationFloatingIPs] != "10.0.71.3" && got[1].Annotations[v1alpha1.AnnotationFloatingIPs] != "10.0.71.3" {
		t.Errorf("Galaxy's pod left 10.0.71.3, and pods got %v and %v", got[0].Annotations, got[1].Annotations)
	}
	counts(3, 0)
}

// kubectl runs it as an administrator, with something on its standard input.
func (g *galaxyCluster) kubectl(stdin string, args ...string) string {
	g.T.Helper()
	bin, err := lab.BinDir()
	if err != nil {
		g.T.Fatal(err)
	}
	command := exec.CommandContext(g.Ctx, filepath.Join(bin, "kubectl"), args...)
	command.Env = []string{"HOME=" + g.T.TempDir(), "KUBECONFIG=" + g.ControlPlane.Kubeconfig(), "PATH=" + filepath.Dir(g.plugin)}
	command.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil {
		g.T.Fatalf("kubectl %v: %v\n%s\n%s", args, err, &stdout, &stderr)
	}
	return stdout.String()
}

// boundOf counts the pods that are bound.
func (g *galaxyCluster) boundOf(names ...string) (int, error) {
	n := 0
	for _, name := range names {
		pod, err := g.Kube.CoreV1().Pods(simulation.Namespace).Get(g.Ctx, name, metav1.GetOptions{})
		if err != nil {
			return n, err
		}
		if pod.Spec.NodeName != "" {
			n++
		}
	}
	return n, nil
}
