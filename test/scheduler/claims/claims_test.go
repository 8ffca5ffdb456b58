// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/program"
	"github.com/berth-dev/berth/test/simulation/proxy"
)

// The controller preallocates for claims, and writes their status.
func TestClaims(t *testing.T) {
	t.Parallel()
	w := simulation.WithNodes(t, lab.ControlPlaneOptions{}, 3)
	w.Controller()

	t.Run("within the quota of the namespace", func(t *testing.T) {
		w := w.On(t)
		w.Pool("quota", "10.0.70.60-10.0.70.69")
		quotas := w.Kube.CoreV1().ResourceQuotas(simulation.Namespace)
		if _, err := quotas.Create(w.Ctx, &v1.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Name: "ips"},
			Spec:       v1.ResourceQuotaSpec{Hard: v1.ResourceList{"requests." + v1alpha1.ResourceIP: simulation.Quantity("1")}},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.Claim("quota", v1alpha1.IPClaimSpec{Size: 4, Preallocate: true, Pools: []string{"quota"}})
		w.ClaimBecomes("quota", "1=0+1 NamespaceAtQuota", `1 of 4 IPv4 addresses: a ResourceQuota allows namespace "default" 1 addresses, and it has 1`)
		// A larger quota is used at once, and no further.
		simulation.Patch(w, quotas, "ips", `{"spec":{"hard":{"requests.%s":"3"}}}`, v1alpha1.ResourceIP)
		w.ClaimBecomes("quota", "3=0+3 NamespaceAtQuota")
		if err := quotas.Delete(w.Ctx, "ips", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.ClaimBecomes("quota", "4=0+4 Preallocated")
		w.DeleteClaim("quota")
	})
	t.Run("preallocated before any pod", func(t *testing.T) {
		w := w.On(t)
		w.Pool("pre", "10.0.70.2-10.0.70.9")
		w.Claim("pre", v1alpha1.IPClaimSpec{Size: 5, Preallocate: true, Pools: []string{"pre"}})
		w.ClaimBecomes("pre", "5=0+5 Preallocated", "All 5 IPv4 addresses are there")
		w.Eventually("wait for the event", func() error { return w.EventOf("pre", "Preallocated", "All 5") })
		if got := len(w.AddressesOf("pre")); got != 5 {
			t.Errorf("it has %d addresses", got)
		}
	})
	t.Run("more than the pool has, until that grows", func(t *testing.T) {
		w := w.On(t)
		w.Pool("small", "10.0.70.20-10.0.70.21")
		w.Claim("greedy", v1alpha1.IPClaimSpec{Size: 4, Preallocate: true, Pools: []string{"small", "none"}})
		w.ClaimBecomes("greedy", "2=0+2 PoolsExhausted", "2 of 4 IPv4 addresses", `pool "small" (10.0.70.20-10.0.70.21) has no free address`)
		w.Eventually("wait for the event", func() error { return w.EventOf("greedy", "PreallocationFailed", "PoolsExhausted: 2 of 4") })
		w.PatchPool("small", `{"spec":{"ranges":["10.0.70.20-10.0.70.29"]}}`)
		w.ClaimBecomes("greedy", "4=0+4 Preallocated")
	})
	t.Run("no such pool", func(t *testing.T) {
		w := w.On(t)
		w.Claim("lost", v1alpha1.IPClaimSpec{Size: 4, Preallocate: true, Pools: []string{"none"}})
		w.ClaimBecomes("lost", "0=0+0 NoSuchPool", `there is no IPPool "none"`)
		w.Claim("six", v1alpha1.IPClaimSpec{Size: 1, Preallocate: true, Families: []v1alpha1.IPFamily{v1alpha1.IPv4, v1alpha1.IPv6}, Pools: []string{"pre"}})
		w.ClaimBecomes("six", "1=0+1 NoPoolFits", "0 of 1 IPv6 addresses", `pool "pre" (10.0.70.2-10.0.70.9) has no IPv6 addresses`)
	})

	w.Scheduler(simulation.SchedulerOptions{})
	w.Pool("web", "10.0.70.100-10.0.70.199")
	t.Run("pods of a claim", func(t *testing.T) {
		w := w.On(t)
		w.Claim("shop", v1alpha1.IPClaimSpec{Size: 3, Pools: []string{"web"}})
		w.ClaimBecomes("shop", "0=0+0 OnDemand")
		w.Create(simulation.NewPods("shop", 3, simulation.OfClaim("shop"))...)
		w.Bound("shop-0", "shop-1", "shop-2")
		w.ClaimBecomes("shop", "3=3+0 OnDemand")
		w.Delete("shop-2")
		w.ClaimBecomes("shop", "3=2+1 OnDemand")
		w.PatchClaim("shop", `{"spec":{"size":1}}`)
		w.ClaimBecomes("shop", "2=2+0 OnDemand Oversized")
		w.Eventually("wait for the event", func() error { return w.EventOf("shop", "Oversized", "its size is 1") })
		w.Delete("shop-1")
		w.ClaimBecomes("shop", "1=1+0 OnDemand")
		w.Invariants()
	})
	t.Run("pods draw what was preallocated", func(t *testing.T) {
		w := w.On(t)
		before := w.AddressesOf("pre")
		w.Create(simulation.NewPods("pre", 5, simulation.OfClaim("pre"))...)
		w.Bound("pre-0", "pre-1", "pre-2", "pre-3", "pre-4")
		w.ClaimBecomes("pre", "5=5+0 Preallocated")
		if now := w.AddressesOf("pre"); !slices.Equal(now, before) {
			t.Errorf("it has %v, it had %v", now, before)
		}
		w.Create(simulation.NewPod("pre-5", simulation.OfClaim("pre")))
		w.Refused("pre-5", `IPClaim "pre"`)
		w.Delete("pre-5")
		w.Invariants()
	})
	t.Run("renamed while a pod holds an address", func(t *testing.T) {
		w := w.On(t)
		held, before := w.Address("pre-0"), w.AddressesOf("pre")
		w.Delete("pre-4")
		w.ClaimBecomes("pre", "5=4+1 Preallocated")
		w.Claim("after", v1alpha1.IPClaimSpec{Size: 4})
		if out, code := moveClaim(w, "pre", "after"); code != 1 || !strings.Contains(out, "set its spec.preallocate to false first") {
			t.Fatalf("exit code %d: %s", code, out)
		}
		w.PatchClaim("pre", `{"spec":{"preallocate":false}}`)
		w.ClaimBecomes("pre", "5=4+1 OnDemand")
		if out, code := moveClaim(w, "pre", "after", "--dry-run"); code != 2 || strings.Count(out, "moved to IPClaim after (dry run)") != 4 {
			t.Fatalf("exit code %d: %s", code, out)
		}
		w.ClaimBecomes("after", "0=0+0 OnDemand")
		if out, code := moveClaim(w, "pre", "after"); code != 2 || !strings.Contains(out, "1 addresses are left with IPClaim default/pre") {
			t.Fatalf("exit code %d: %s", code, out)
		}
		w.ClaimBecomes("after", "4=4+0 OnDemand")
		w.ClaimBecomes("pre", "1=0+1 OnDemand")
		w.PatchClaim("after", `{"spec":{"size":5,"releasePolicy":"Never"}}`)
		if out, code := moveClaim(w, "pre", "after"); code != 0 {
			t.Fatalf("exit code %d: %s", code, out)
		}
		w.ClaimBecomes("after", "5=4+1 OnDemand")
		w.ClaimBecomes("pre", "0=0+0 OnDemand")
		if now := w.AddressesOf("after"); !slices.Equal(now, before) {
			t.Errorf("it has %v, %v were moved to it", now, before)
		}
		w.Eventually("wait for the addresses to follow the claim's policy", func() error {
			for _, name := range before {
				ip, err := w.Berth.FloatingIPs.Get(w.Ctx, name, metav1.GetOptions{})
				if err != nil || ip.Spec.ReleasePolicy != v1alpha1.ReleaseNever {
					return fmt.Errorf("%s: %v, %w", name, ip.Spec.ReleasePolicy, err)
				}
			}
			return nil
		})
		w.PatchClaim("after", `{"spec":{"releasePolicy":"Retain"}}`)
		w.DeleteClaim("pre")
		w.Invariants()
		w.Delete("pre-0")
		w.ClaimBecomes("after", "5=3+2 OnDemand")
		w.Create(simulation.NewPods("after", 2, simulation.OfClaim("after"))...)
		got := []string{w.Address("after-0"), w.Address("after-1")}
		if !slices.Contains(got, held) {
			t.Errorf("its pods have %v, %s was pre-0's", got, held)
		}
		w.ClaimBecomes("after", "5=5+0 OnDemand")
		w.Invariants()
	})
	t.Run("deleted and made again under pods", func(t *testing.T) {
		w := w.On(t)
		w.Claim("again", v1alpha1.IPClaimSpec{Size: 2, ReleasePolicy: v1alpha1.ReleaseNever, Pools: []string{"web"}})
		w.Create(simulation.NewPods("again", 2, simulation.OfClaim("again"))...)
		w.Bound("again-0", "again-1")
		w.Delete("again-1")
		w.ClaimBecomes("again", "2=1+1 OnDemand")
		before := w.AddressesOf("again")
		w.DeleteClaim("again")
		w.Claim("again", v1alpha1.IPClaimSpec{Size: 2, Pools: []string{"web"}})
		w.ClaimBecomes("again", "2=1+1 OnDemand")
		w.Create(simulation.NewPod("again-1", simulation.OfClaim("again")))
		w.Bound("again-1")
		if now := w.AddressesOf("again"); !slices.Equal(now, before) {
			t.Errorf("it has %v, it had %v", now, before)
		}
		w.ClaimBecomes("again", "2=2+0 OnDemand")
		w.Delete("again-0", "again-1")
		w.DeleteClaim("again")
		w.Eventually("wait for its addresses to be free", func() error {
			if now := w.AddressesOf("again"); len(now) > 0 {
				return fmt.Errorf("it has %v", now)
			}
			return nil
		})
	})
}

// moveClaim runs kubectl berth move-claim, and returns its output and exit code.
func moveClaim(w *simulation.World, args ...string) (output string, code int) {
	w.T.Helper()
	command := exec.CommandContext(w.Ctx, simulation.Plugin(w.T), append([]string{"move-claim", "--kubeconfig=" + w.ControlPlane.Kubeconfig(), "--cache-dir=" + w.T.TempDir()}, args...)...)
	out, err := command.CombinedOutput()
	if exited := new(exec.ExitError); err != nil && !errors.As(err, &exited) {
		w.T.Fatal(err)
	}
	return string(out), command.ProcessState.ExitCode()
}

// A controller that is killed at any of its writes for claims is followed by one
// that ends what it began.
func TestClaimsControllerKilled(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	w.Pool("web", "10.0.70.2-10.0.70.99")
	for _, at := range []proxy.Point{proxy.BeforeRequest, proxy.BeforeAnswer} {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			w := w.On(t)
			name := fmt.Sprintf("web-%d", at)
			first := w.Controller()
			tap := first.Tap(proxy.IsClaim, at)
			spec := v1alpha1.IPClaimSpec{Size: 5, Preallocate: true, ReleasePolicy: v1alpha1.ReleaseNever}
			w.Claim(name, spec)
			w.Await(tap)
			first.Kill()
			tap.Drop()
			second := w.Controller()
			w.ClaimBecomes(name, "5=0+5 Preallocated")
			before := w.AddressesOf(name)

			// A claim of the name that is made again adopts the addresses.
			tap = second.Tap(proxy.IsIPPatch, at)
			w.DeleteClaim(name)
			w.Claim(name, spec)
			w.Await(tap)
			second.Kill()
			tap.Drop()
			third := w.Controller()
			w.ClaimBecomes(name, "5=0+5 Preallocated")
			claim, err := w.Berth.IPClaims(simulation.Namespace).Get(w.Ctx, name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			w.Eventually("wait for the addresses to be the claim's", func() error {
				for _, address := range before {
					ip, err := w.Berth.FloatingIPs.Get(w.Ctx, address, metav1.GetOptions{})
					if err != nil || ip.Spec.Owner.UID != claim.UID {
						return fmt.Errorf("%s: %v, %w", address, ip.Spec.Owner, err)
					}
				}
				return nil
			})
			if now := w.AddressesOf(name); !slices.Equal(now, before) {
				t.Errorf("it has %v, it adopted %v", now, before)
			}
			third.Kill()
		})
	}
}

// One version of an application gives way to the next, with its addresses.
func TestClaimBlueGreen(t *testing.T) {
	t.Parallel()
	w := simulation.Start(t, lab.ControlPlaneOptions{Controllers: true}, 3)
	w.Pool("web", "10.0.70.2-10.0.70.99")
	w.Claim("shop", v1alpha1.IPClaimSpec{Size: 4, Preallocate: true})
	w.ClaimBecomes("shop", "4=0+4 Preallocated")
	original := w.AddressesOf("shop")

	deploy := func(name string, replicas int32) {
		w.T.Helper()
		_, err := w.Kube.AppsV1().Deployments(simulation.Namespace).Create(w.Ctx, &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: appsv1.DeploymentSpec{
				Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
				Template: simulation.Template(name, simulation.OfClaim("shop")),
			},
		}, metav1.CreateOptions{})
		if err != nil {
			w.T.Fatal(err)
		}
	}
	podsOf := func(name string) []v1.Pod {
		pods, err := w.Pods()
		if err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(pods, func(pod v1.Pod) bool { return pod.Labels["app"] != name })
	}
	deploy("blue", 3)
	w.RolledOut("blue", 3)
	w.ClaimBecomes("shop", "4=3+1 Preallocated")
	// The first pod of green is a trial with the address to spare; others wait.
	deploy("green", 1)
	w.RolledOut("green", 1)
	w.ClaimBecomes("shop", "4=4+0 Preallocated")
	w.PatchDeployment("green", `{"spec":{"replicas":3}}`)
	w.Eventually("wait for green's other pods to be told why they wait", func() error {
		n := 0
		for _, pod := range podsOf("green") {
			for _, condition := range pod.Status.Conditions {
				if condition.Reason == v1.PodReasonUnschedulable && strings.Contains(condition.Message, `IPClaim "shop" has all 4 addresses`) {
					n++
				}
			}
		}
		if n != 2 {
			return fmt.Errorf("%d of 2 were", n)
		}
		return nil
	})
	w.PatchDeployment("blue", `{"spec":{"replicas":0}}`)
	w.RolledOut("blue", 0)
	w.RolledOut("green", 3)
	w.ClaimBecomes("shop", "4=3+1 Preallocated")
	for _, pod := range podsOf("green") {
		if address := pod.Annotations[v1alpha1.AnnotationFloatingIPs]; !slices.Contains(original, address) {
			t.Errorf("green has %s, which is not one of %v", address, original)
		}
	}
	if now := w.AddressesOf("shop"); !slices.Equal(now, original) {
		t.Errorf("the claim has %v, it had %v", now, original)
	}
	background := metav1.DeletePropagationBackground
	if err := w.Kube.AppsV1().Deployments(simulation.Namespace).Delete(w.Ctx, "blue", metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		t.Fatal(err)
	}
	w.Invariants()
	w.DeleteClaim("shop")
	w.Eventually("wait for the spare address to be free", func() error {
		if now := w.AddressesOf("shop"); len(now) != 3 {
			return fmt.Errorf("it has %v", now)
		}
		return nil
	})
	w.PatchDeployment("green", `{"spec":{"replicas":0}}`)
	w.Eventually("wait for all addresses to be free", func() error {
		if now := w.AddressesOf("shop"); len(now) != 0 {
			return fmt.Errorf("it has %v", now)
		}
		return nil
	})
}

// The controller's metrics and events about pools and claims.
func TestClaimAndPoolMetrics(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	address := w.FreeAddress()
	w.Controller(program.ServeAt(address)...)
	w.Pool("web", "10.0.70.2-10.0.70.4")
	w.Claim("shop", v1alpha1.IPClaimSpec{Size: 3, Preallocate: true})
	w.ClaimBecomes("shop", "3=0+3 Preallocated")
	w.Scrapes("https://"+address,
		[]string{
			`berth_pool_addresses{pool="web",state="retained"} 3`, `berth_pool_addresses{pool="web",state="free"} 0`,
			`berth_pool_capacity{pool="web"} 3`, `berth_pool_outside_addresses{pool="web"} 0`,
			`berth_claim_addresses{claim="shop",namespace="default",state="retained"} 3`,
			`berth_claim_size{claim="shop",namespace="default"} 3`, `berth_claim_ready{claim="shop",namespace="default"} 1`,
		}, nil)
	w.Eventually("wait for the event", func() error { return w.EventOf("web", "Exhausted", "All 3 addresses are taken") })

	w.PatchPool("web", `{"spec":{"ranges":["10.0.70.3-10.0.70.5"]}}`)
	w.Eventually("wait for the event", func() error { return w.EventOf("web", "AddressesOutside", "1 addresses") })
	w.Eventually("wait for the event", func() error { return w.EventOf("web", "AddressesFree", "") })
	w.Unbind("ippools.berth.dev")
	w.Eventually("delete a pool in use", func() error { return w.Berth.IPPools.Delete(w.Ctx, "web", metav1.DeleteOptions{}) })
	w.Scrapes("https://"+address, []string{`berth_pool_outside_addresses{pool="web"} 3`}, []string{`berth_pool_capacity{pool="web"}`})
	w.Eventually("wait for the event", func() error { return w.EventOf("10.0.70.3", "PoolGone", `IPPool "web" is gone`) })
	w.DeleteClaim("shop")
	w.Scrapes("https://"+address, nil, []string{`claim="shop"`, `pool="web"`})
}
