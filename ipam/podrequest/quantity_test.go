// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helpers "k8s.io/component-helpers/resource"
	corev1 "k8s.io/kubernetes/pkg/apis/core/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/seedtest"
)

func list(name v1.ResourceName, quantity string) v1.ResourceList {
	return v1.ResourceList{name: resource.MustParse(quantity), v1.ResourceCPU: resource.MustParse("100m")}
}

// asks returns a container that requests that many addresses.
func asks(name v1.ResourceName, quantity string) v1.Container {
	return v1.Container{Resources: v1.ResourceRequirements{Requests: list(name, quantity), Limits: list(name, quantity)}}
}

func limited(name v1.ResourceName, quantity string) v1.Container {
	return v1.Container{Resources: v1.ResourceRequirements{Limits: list(name, quantity)}}
}

func sidecar(container v1.Container) v1.Container {
	always := v1.ContainerRestartPolicyAlways
	container.RestartPolicy = &always
	return container
}

func TestCount(t *testing.T) {
	for _, name := range []v1.ResourceName{v1alpha1.ResourceIP, v1.ResourceName("tke.cloud.tencent.com/eni-ip")} {
		other := v1.ResourceName(v1alpha1.ResourceIP)
		if name == other {
			other = v1.ResourceName("tke.cloud.tencent.com/eni-ip")
		}
		one, two, three := asks(name, "1"), asks(name, "2"), asks(name, "3")
		never, onFailure := v1.ContainerRestartPolicyNever, v1.ContainerRestartPolicyOnFailure
		notAlways := func(container v1.Container, policy *v1.ContainerRestartPolicy) v1.Container {
			container.RestartPolicy = policy
			return container
		}
		for _, test := range []struct {
			name       string
			containers []v1.Container
			inits      []v1.Container
			want       int64
		}{
			{"no container", nil, nil, 0},
			{"none asks", []v1.Container{{}, asks(v1.ResourceMemory, "1Gi")}, []v1.Container{{}, sidecar(v1.Container{})}, 0},
			{"zero", []v1.Container{asks(name, "0")}, nil, 0},
			{"another resource", []v1.Container{asks(other, "1")}, nil, 0},
			{"one", []v1.Container{{}, one}, nil, 1},
			{"containers add up", []v1.Container{one, {}, two}, nil, 3},
			{"init container alone", []v1.Container{{}}, []v1.Container{one}, 1},
			{"of init containers one runs at a time", []v1.Container{one}, []v1.Container{two, three, two}, 3},
			{"init container less", []v1.Container{two}, []v1.Container{one}, 2},
			{"sidecar alone", []v1.Container{{}}, []v1.Container{sidecar(one)}, 1},
			{"sidecar and container", []v1.Container{one}, []v1.Container{sidecar(one)}, 2},
			{"sidecars and containers", []v1.Container{one, two}, []v1.Container{sidecar(one), sidecar(three)}, 7},
			{"init container beside the sidecar before it", []v1.Container{one}, []v1.Container{sidecar(two), three}, 5},
			{"init container before the sidecar", []v1.Container{one}, []v1.Container{three, sidecar(one)}, 3},
			{"init container between sidecars", []v1.Container{{}}, []v1.Container{sidecar(one), two, sidecar(one)}, 3},
			{"init container less than all that follow", []v1.Container{two}, []v1.Container{sidecar(one), one, sidecar(one)}, 4},
			{"init containers that restart otherwise", []v1.Container{one}, []v1.Container{notAlways(one, &never), notAlways(one, &onFailure)}, 1},
			{"limits only, as in a template", []v1.Container{limited(name, "1"), one}, []v1.Container{sidecar(limited(name, "2"))}, 4},
			{"1k", []v1.Container{asks(name, "1k")}, nil, 1000},
			{"the API server admits no part of one", []v1.Container{asks(name, "1500m")}, nil, 2},
			{"more than int64, added up", []v1.Container{asks(name, "9E"), asks(name, "9E")}, []v1.Container{sidecar(asks(name, "9E"))}, math.MaxInt64},
			{"more than int64, alone", []v1.Container{asks(name, "90E")}, nil, math.MaxInt64},
			{"more than int64, in digits", []v1.Container{{}}, []v1.Container{asks(name, "99999999999999999999999")}, math.MaxInt64},
		} {
			t.Run(string(name)+" "+test.name, func(t *testing.T) {
				spec := &v1.PodSpec{Containers: test.containers, InitContainers: test.inits}
				if got := count(spec, name); got != test.want {
					t.Errorf("got %d, want %d", got, test.want)
				}
				// The overhead of a RuntimeClass is added to each.
				spec.Overhead = list(name, "2")
				if got, want := count(spec, name), sum(test.want, 2); got != want {
					t.Errorf("with overhead: got %d, want %d", got, want)
				}
			})
		}
	}
}

// The count of a random pod as written, and of its slim copy, equals kube-scheduler's
// count after API server defaulting.
func TestCountAsKubeScheduler(t *testing.T) {
	random := rand.New(rand.NewPCG(seedtest.Seed(t), 0))
	names := []v1.ResourceName{v1alpha1.ResourceIP, v1.ResourceName("tke.cloud.tencent.com/eni-ip"), v1.ResourceCPU}
	resources := func() v1.ResourceList {
		if random.IntN(3) == 0 {
			return nil
		}
		list := v1.ResourceList{}
		for _, name := range names {
			if random.IntN(2) == 0 {
				list[name] = *resource.NewQuantity(int64(random.IntN(4)), resource.DecimalSI)
			}
		}
		return list
	}
	containers := func(most int) []v1.Container {
		var all []v1.Container
		for range random.IntN(most + 1) {
			container := v1.Container{Resources: v1.ResourceRequirements{Requests: resources(), Limits: resources()}}
			if random.IntN(2) == 0 {
				container = sidecar(container)
			}
			all = append(all, container)
		}
		return all
	}
	asked := 0
	for range 20000 {
		pod := &v1.Pod{Spec: v1.PodSpec{Containers: containers(3), InitContainers: containers(4)}}
		if random.IntN(4) == 0 {
			pod.Spec.Overhead = resources()
		}
		if random.IntN(4) == 0 {
			pod.Spec.Resources = &v1.ResourceRequirements{Requests: resources(), Limits: resources()}
		}
		for _, name := range names[:2] {
			written := count(&pod.Spec, name)
			stored := pod.DeepCopy()
			corev1.SetDefaults_Pod(stored)
			quantity := helpers.PodRequests(stored, helpers.PodResourcesOptions{})[name]
			slim := Slim(&pod.Spec)
			if want := quantity.Value(); written != want || count(&stored.Spec, name) != want || count(&slim, name) != want {
				t.Fatalf("%s: got %d, with the API server's defaults %d, of the slim copy %d, kube-scheduler counts %d: %+v",
					name, written, count(&stored.Spec, name), count(&slim, name), want, pod.Spec)
			}
			if written > 0 {
				asked++
			}
		}
	}
	if asked < 10000 {
		t.Errorf("only %d of the pods ask: the test tests nothing", asked)
	}
}

// A slim copy has nothing of the containers that ask for no address, and of the others
// nothing but their requests.
func TestSlim(t *testing.T) {
	ip, eni := v1.ResourceName(v1alpha1.ResourceIP), v1.ResourceName("tke.cloud.tencent.com/eni-ip")
	only := func(name v1.ResourceName) v1.ResourceList { return v1.ResourceList{name: resource.MustParse("1")} }
	memory := asks(v1.ResourceMemory, "1Gi")
	both, restarted := asks(ip, "1"), sidecar(limited(eni, "1"))
	both.Name, both.Image = "web", "registry/web"
	got := Slim(&v1.PodSpec{
		NodeName: "node1", HostNetwork: true, Overhead: list(ip, "1"),
		Containers: []v1.Container{memory, both}, InitContainers: []v1.Container{memory, restarted},
	})
	want := v1.PodSpec{
		HostNetwork: true, Overhead: only(ip),
		Containers:     []v1.Container{{Resources: v1.ResourceRequirements{Requests: only(ip), Limits: only(ip)}}},
		InitContainers: []v1.Container{sidecar(v1.Container{Resources: v1.ResourceRequirements{Limits: only(eni)}})},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

// The scheduler counts for every pod, on every node that advertises the resource.
func TestCountAllocatesNothing(t *testing.T) {
	for name, spec := range specs() {
		if n := testing.AllocsPerRun(100, func() { count(spec, v1alpha1.ResourceIP) }); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func specs() map[string]*v1.PodSpec {
	usual := v1.Container{Resources: v1.ResourceRequirements{
		Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m"), v1.ResourceMemory: resource.MustParse("1Gi")},
		Limits:   v1.ResourceList{v1.ResourceMemory: resource.MustParse("1Gi")},
	}}
	one := asks(v1alpha1.ResourceIP, "1")
	return map[string]*v1.PodSpec{
		"asks not, 1 container":  {Containers: []v1.Container{usual}},
		"asks not, 5 containers": {Containers: []v1.Container{usual, usual, usual}, InitContainers: []v1.Container{usual, sidecar(usual)}},
		"asks, 1 container":      {Containers: []v1.Container{one}},
		"asks, 5 containers":     {Containers: []v1.Container{usual, one, one}, InitContainers: []v1.Container{one, sidecar(one)}},
	}
}

func BenchmarkCount(b *testing.B) {
	for name, spec := range specs() {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				count(spec, v1alpha1.ResourceIP)
			}
		})
	}
}
