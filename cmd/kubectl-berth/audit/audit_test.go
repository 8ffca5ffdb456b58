// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/metadata"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/galaxy"
	"github.com/berth-dev/berth/ipam/ipamtest"
	"github.com/berth-dev/berth/ipam/reclaim"
)

// cluster is a small one in which everything fits: pods web-0 and web-1 of a StatefulSet with
// two replicas, on node1; a third address of it that is reserved.
type cluster struct {
	pool, other *v1alpha1.IPPool
	ips         []*v1alpha1.FloatingIP
	set         *appsv1.StatefulSet
	pods        []*v1.Pod
	node        *v1.Node
	agent       *v1.Pod
	namespace   *v1.Namespace
}

func sound() *cluster {
	c := &cluster{
		pool: &v1alpha1.IPPool{
			ObjectMeta: metav1.ObjectMeta{Name: "web", UID: "pool", Generation: 1, CreationTimestamp: metav1.Unix(1, 0)},
			Spec: v1alpha1.IPPoolSpec{
				Subnet: "10.0.70.0/24", Gateway: "10.0.70.1", Ranges: []string{"10.0.70.10-10.0.70.19"}, NodeSubnets: []string{"10.0.60.0/24"},
			},
		},
		set: &appsv1.StatefulSet{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "set"},
			Spec:       appsv1.StatefulSetSpec{Replicas: new(int32(2)), Template: v1.PodTemplateSpec{Spec: asking()}},
		},
		node: &v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: "node"},
			Status:     v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "10.0.60.11"}}},
		},
		agent: &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "berth-system", Name: "berth-agent-x", UID: "agent", Labels: map[string]string{"app.kubernetes.io/name": "berth-agent"}},
			Spec:       v1.PodSpec{NodeName: "node1"}, Status: v1.PodStatus{Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}},
		},
		namespace: &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", UID: "shop", CreationTimestamp: metav1.Unix(1, 0)}},
	}
	for i, address := range []string{"10.0.70.10", "10.0.70.11"} {
		name := "web-" + string(rune('0'+i))
		c.pods = append(c.pods, &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: name, UID: types.UID(name), Annotations: map[string]string{v1alpha1.AnnotationFloatingIPs: address},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web", UID: "set", Controller: new(true)}},
			},
			Spec: asking(), Status: v1.PodStatus{Phase: v1.PodRunning, PodIPs: []v1.PodIP{{IP: address}}},
		})
		c.pods[i].Spec.NodeName = "node1"
		c.ips = append(c.ips, &v1alpha1.FloatingIP{
			ObjectMeta: metav1.ObjectMeta{Name: address, UID: types.UID(address), ResourceVersion: "7", CreationTimestamp: metav1.Unix(2, 0)},
			Spec: v1alpha1.FloatingIPSpec{
				Address: address, Pool: "web", Node: "node1", ReleasePolicy: v1alpha1.ReleaseRetain,
				Owner: &v1alpha1.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: "shop", NamespaceUID: "shop", Name: "web", UID: "set", PodName: name},
				Pod:   &v1alpha1.PodReference{Name: name, UID: types.UID(name)},
			},
		})
	}
	c.ips = append(c.ips, &v1alpha1.FloatingIP{
		ObjectMeta: metav1.ObjectMeta{Name: "10.0.70.12", UID: "10.0.70.12", ResourceVersion: "8"},
		Spec:       v1alpha1.FloatingIPSpec{Address: "10.0.70.12", Pool: "web", Reserved: true},
	})
	c.pool.Status = v1alpha1.IPPoolStatus{ObservedGeneration: 1, Capacity: 10, Allocated: 2, Reserved: 1, Free: 7, Conditions: []metav1.Condition{
		{Type: v1alpha1.PoolReady, Status: metav1.ConditionTrue, Reason: "Valid", Message: "The scheduler allocates from the pool.", ObservedGeneration: 1},
		{Type: v1alpha1.PoolExhausted, Status: metav1.ConditionFalse, Reason: "AddressesFree", Message: "There are free addresses.", ObservedGeneration: 1},
	}}
	return c
}

func asking() v1.PodSpec {
	return v1.PodSpec{Containers: []v1.Container{{Resources: v1.ResourceRequirements{Limits: v1.ResourceList{v1alpha1.ResourceIP: resource.MustParse("1")}}}}}
}

// audit runs an audit of the cluster, and returns the codes that it finds. later is called
// before suspects are looked at again.
func (c *cluster) audit(t *testing.T, later func(berth *ipamtest.Server, kube *fake.Clientset)) []Code {
	t.Helper()
	report := c.report(t, later, nil)
	var codes []Code
	for _, f := range report.Findings {
		t.Logf("%s %s: %s [%v] %s", f.Code, f.Address, f.Text, f.Objects, f.Command)
		if f.Text == "" || f.Command == "" || len(f.Objects) == 0 {
			t.Errorf("%s lacks a text, a command or objects", f.Code)
		}
		codes = append(codes, f.Code)
	}
	if len(report.Unknown) > 0 {
		t.Errorf("not found out: %v", report.Unknown)
	}
	return slices.Compact(codes)
}

// report runs an audit of the cluster. custom has its custom kinds; nil: none are served.
func (c *cluster) report(t *testing.T, later func(berth *ipamtest.Server, kube *fake.Clientset), custom dynamic.Interface) *Report {
	t.Helper()
	grace := 100 * time.Millisecond
	if later != nil {
		grace = time.Minute // it ends as soon as nothing is wrong
	}
	auditor, berth, kube := c.auditor(grace, custom)
	if later != nil {
		auditor.options.Doubts = func([]Finding, time.Time) { later(berth, kube) }
	}
	report, err := auditor.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// auditor returns an Auditor of the cluster that takes no status for late, and the cluster's API
// servers.
func (c *cluster) auditor(grace time.Duration, custom dynamic.Interface) (*Auditor, *ipamtest.Server, *fake.Clientset) {
	berth := ipamtest.NewServer(c.pool)
	if c.other != nil {
		berth.Put(c.other)
	}
	for _, ip := range c.ips {
		berth.Put(ip)
	}
	objects := []runtime.Object{c.namespace}
	for _, pod := range c.pods {
		objects = append(objects, pod)
	}
	if c.set != nil {
		objects = append(objects, c.set)
	}
	if c.node != nil {
		objects = append(objects, c.node)
	}
	if c.agent != nil {
		objects = append(objects, c.agent)
	}
	kube := fake.NewClientset(objects...)
	clients := reclaim.Clients{
		Kube: kube, Berth: berth.Client(), Dynamic: dynamic.NewForConfigOrDie(berth.Config()), Metadata: metadata.NewForConfigOrDie(berth.Config()),
	}
	if custom != nil {
		clients.Dynamic = custom
		kube.Resources = []*metav1.APIResourceList{{
			GroupVersion: "apps.kruise.io/v1alpha1", APIResources: []metav1.APIResource{{Name: "clonesets", Kind: "CloneSet", Namespaced: true}},
		}}
	}
	auditor := New(clients, Options{Grace: grace, Agents: true, Namespace: "berth-system"})
	auditor.late = 0
	return auditor, berth, kube
}

var broken = []struct {
	name   string
	breaks func(c *cluster)
	codes  []Code
}{
	{"nothing", func(*cluster) {}, nil},
	{"the pod is gone", func(c *cluster) { c.pods = c.pods[:1] }, []Code{PodGone}},
	{"the pod has finished", func(c *cluster) { c.pods[1].Status.Phase = v1.PodFailed }, []Code{PodGone}},
	{"another pod of its name", func(c *cluster) { c.pods[1].UID = "successor" }, []Code{PodGone, NotRecorded}},
	{"the owner is gone", func(c *cluster) {
		c.set, c.pods = nil, c.pods[:1]
		c.ips[1].Spec.Pod, c.ips[1].Spec.Node, c.ips[1].Spec.LastPod = nil, "", "web-1"
		c.pool.Status.Allocated, c.pool.Status.Retained = 1, 1
	}, []Code{OwnerGone}},
	{"the owner is scaled down", func(c *cluster) {
		c.set.Spec.Replicas, c.pods = new(int32(1)), c.pods[:1]
		c.ips[1].Spec.Pod, c.ips[1].Spec.Node, c.ips[1].Spec.LastPod = nil, "", "web-1"
		c.pool.Status.Allocated, c.pool.Status.Retained = 1, 1
	}, []Code{OwnerGone}},
	{"retained", func(c *cluster) {
		c.pods = c.pods[:1]
		c.ips[1].Spec.Pod, c.ips[1].Spec.Node, c.ips[1].Spec.LastPod = nil, "", "web-1"
		c.pool.Status.Allocated, c.pool.Status.Retained = 1, 1
	}, nil},
	{"rest overdue", func(c *cluster) {
		c.pods = c.pods[:1]
		c.ips[1].Spec = v1alpha1.FloatingIPSpec{Address: "10.0.70.11", Pool: "web", LastPod: "web-1", ReleasedAt: &metav1.Time{Time: time.Now().Add(-time.Minute)}}
		c.pool.Status.Allocated, c.pool.Status.Cooling = 1, 1
	}, []Code{RestOverdue}},
	{"at rest", func(c *cluster) {
		c.pods = c.pods[:1]
		c.pool.Spec.Cooldown = &metav1.Duration{Duration: time.Hour}
		c.ips[1].Spec = v1alpha1.FloatingIPSpec{Address: "10.0.70.11", Pool: "web", LastPod: "web-1", ReleasedAt: &metav1.Time{Time: time.Now().Add(-time.Minute)}}
		c.pool.Status.Allocated, c.pool.Status.Cooling = 1, 1
	}, nil},
	{"another node", func(c *cluster) { c.pods[1].Spec.NodeName = "node2" }, []Code{WrongNode}},
	{"attached without a pod", func(c *cluster) {
		c.pods = c.pods[:1]
		c.ips[1].Spec.Pod, c.ips[1].Spec.LastPod, c.ips[1].Spec.ExternallyAssigned = nil, "web-1", true
		c.pool.Status.Allocated, c.pool.Status.Retained = 1, 1
	}, []Code{Undetached}},
	{"the pool is gone", func(c *cluster) {
		c.ips[1].Spec.Pool, c.pool.Spec.Ranges, c.pool.Spec.Exclude = "gone", []string{"10.0.70.10-10.0.70.19"}, []string{"10.0.70.11"}
		c.pool.Status.Capacity, c.pool.Status.Allocated = 9, 1
	}, []Code{PoolGone}},
	{"outside of the pool", func(c *cluster) {
		c.pool.Spec.Exclude = []string{"10.0.70.11"}
		c.pool.Status.Capacity, c.pool.Status.Allocated, c.pool.Status.Outside = 9, 1, 1
	}, []Code{OutsidePool}},
	{"the node is gone", func(c *cluster) { c.node = nil }, []Code{NodeGone, StaleStatus, PoolNoNode}},
	{"the node is in another subnet", func(c *cluster) { c.node.Status.Addresses[0].Address = "10.0.61.11" }, []Code{NodeOutside, StaleStatus, PoolNoNode}},
	{"conflict", func(c *cluster) {
		c.ips[0].Status.Conditions = []metav1.Condition{{Type: v1alpha1.FloatingIPConflict, Status: metav1.ConditionTrue, Message: "02:00:00:00:00:01 has it"}}
	}, []Code{InConflict}},
	{"the owner was made again", func(c *cluster) {
		c.set.UID = "again"
		c.pods[0].OwnerReferences[0].UID, c.pods[1].OwnerReferences[0].UID = "again", "again"
	}, []Code{Outdated}},
	{"no record", func(c *cluster) {
		c.ips = slices.Delete(c.ips, 1, 2)
		c.pool.Status.Allocated, c.pool.Status.Free = 1, 8
	}, []Code{NotRecorded}},
	{"two pods", func(c *cluster) {
		c.pods[1].Status.PodIPs = []v1.PodIP{{IP: "10.0.70.10"}}
		c.ips = slices.Delete(c.ips, 1, 2)
		c.pool.Status.Allocated, c.pool.Status.Free = 1, 8
	}, []Code{NotRecorded, TwoPods}},
	{"a virtual machine moves", func(c *cluster) {
		c.pods[1].Status.PodIPs = []v1.PodIP{{IP: "10.0.70.10"}}
		c.ips[0].Spec.Twin = &v1alpha1.Twin{Pod: v1alpha1.PodReference{Name: c.pods[1].Name, UID: c.pods[1].UID}, Node: c.pods[1].Spec.NodeName}
		c.ips = slices.Delete(c.ips, 1, 2)
		c.pool.Status.Allocated, c.pool.Status.Free = 1, 8
	}, nil},
	{"other IPs", func(c *cluster) { c.pods[1].Status.PodIPs = []v1.PodIP{{IP: "10.0.70.15"}} }, []Code{OtherPodIPs}},
	{"other IPs on another interface", func(c *cluster) {
		c.pods[1].Annotations[v1alpha1.AnnotationNetworks] = "floating"
		c.pods[1].Status.PodIPs = []v1.PodIP{{IP: "10.244.0.15"}}
	}, nil},
	{"an address of the pool on another interface", func(c *cluster) {
		c.pods[1].Annotations[v1alpha1.AnnotationNetworks] = "floating"
		c.pods[1].Status.PodIPs = []v1.PodIP{{IP: "10.0.70.15"}}
	}, []Code{OtherPodIPs}},
	{"a user dropped an annotation, and wrote another", func(c *cluster) {
		delete(c.pods[0].Annotations, v1alpha1.AnnotationFloatingIPs)
		c.pods[1].Annotations[v1alpha1.AnnotationFloatingIPs] = "10.0.70.10,10.0.70.12"
	}, nil},
	{"no record of a pod that does not run", func(c *cluster) {
		c.pods[1].Status.PodIPs = nil
		c.ips = slices.Delete(c.ips, 1, 2)
		c.pool.Status.Allocated, c.pool.Status.Free = 1, 8
	}, []Code{TooFew}},
	{"a pod on Galaxy's network", func(c *cluster) {
		delete(c.pods[1].Annotations, v1alpha1.AnnotationFloatingIPs)
		c.pods[1].Spec.Containers[0].Resources.Limits = v1.ResourceList{galaxy.ResourceENIIP: resource.MustParse("1")}
		c.ips = slices.Delete(c.ips, 1, 2)
		c.pool.Status.Allocated, c.pool.Status.Free = 1, 8
	}, nil},
	{"one of Galaxy's that Berth bound with too few", func(c *cluster) {
		c.pods[1].Spec.Containers[0].Resources.Limits = v1.ResourceList{galaxy.ResourceENIIP: resource.MustParse("2")}
	}, []Code{TooFew}},
	{"no pool", func(c *cluster) {
		c.pool.Spec.Ranges = []string{"10.0.71.1"}
		c.pool.Status.Capacity, c.pool.Status.Allocated, c.pool.Status.Reserved, c.pool.Status.Free = 0, 0, 0, 0
		c.pool.Status.Outside = 3
	}, []Code{PoolInvalid, StaleStatus}},
	{"overlap", func(c *cluster) {
		c.other = c.pool.DeepCopy()
		c.other.Name, c.other.UID, c.other.CreationTimestamp = "later", "later", metav1.Unix(2, 0)
	}, []Code{PoolsOverlap, StaleStatus}},
	{"miscounted", func(c *cluster) { c.pool.Status.Allocated = 16 }, []Code{StaleStatus}},
	{"no agent", func(c *cluster) { c.agent = nil }, []Code{NoAgent}},
	{"no agent on the node", func(c *cluster) { c.agent.Spec.NodeName = "node2" }, []Code{NoAgent}},
	{"the agent is not Ready", func(c *cluster) { c.agent.Status.Conditions[0].Status = v1.ConditionFalse }, []Code{AgentNotReady}},
}

func TestRun(t *testing.T) {
	for _, test := range broken {
		t.Run(test.name, func(t *testing.T) {
			c := sound()
			test.breaks(c)
			if codes := c.audit(t, nil); !slices.Equal(codes, test.codes) {
				t.Errorf("found %v, want %v", codes, test.codes)
			}
		})
	}
}

// A change on its way is no finding: the lists are of different moments.
func TestPassing(t *testing.T) {
	for _, test := range []struct {
		name   string
		breaks func(c *cluster)
		later  func(berth *ipamtest.Server, kube *fake.Clientset)
	}{
		{"the controller frees the address", func(c *cluster) {
			c.pods = c.pods[:1]
			c.set.Spec.Replicas = new(int32(1))
			c.pool.Status.Allocated = 1
			c.pool.Status.Free = 8
		},
			func(berth *ipamtest.Server, _ *fake.Clientset) {
				_ = berth.Client().FloatingIPs.Delete(t.Context(), "10.0.70.11", metav1.DeleteOptions{})
			}},
		{"the pod was bound after the addresses were listed", func(c *cluster) { c.ips = slices.Delete(c.ips, 1, 2) },
			func(berth *ipamtest.Server, _ *fake.Clientset) { berth.Put(sound().ips[1]) }},
		{"the pod was bound after the addresses were listed, and does not run", func(c *cluster) {
			c.pods[1].Status.PodIPs = nil
			c.ips = slices.Delete(c.ips, 1, 2)
		}, func(berth *ipamtest.Server, _ *fake.Clientset) { berth.Put(sound().ips[1]) }},
		{"the pod ended after the addresses were listed", func(c *cluster) {
			c.pool.Status.Allocated, c.pool.Status.Free = 1, 8
			c.ips = slices.Delete(c.ips, 1, 2)
		}, func(_ *ipamtest.Server, kube *fake.Clientset) {
			_ = kube.CoreV1().Pods("shop").Delete(t.Context(), "web-1", metav1.DeleteOptions{})
		}},
		{"the pod in Berth's namespace ended after the addresses were listed", func(c *cluster) {
			c.pool.Status.Allocated, c.pool.Status.Free = 1, 8
			c.pods[1].Namespace, c.ips = "berth-system", slices.Delete(c.ips, 1, 2)
		}, func(_ *ipamtest.Server, kube *fake.Clientset) {
			_ = kube.CoreV1().Pods("berth-system").Delete(t.Context(), "web-1", metav1.DeleteOptions{})
		}},
		{"the status follows", func(c *cluster) { c.pool.Status.Allocated = 16 },
			func(berth *ipamtest.Server, _ *fake.Clientset) { berth.Put(sound().pool) }},
		{"the status is written anew, and is wrong for another reason", func(c *cluster) { c.pool.Status.Allocated = 16 },
			func(berth *ipamtest.Server, _ *fake.Clientset) {
				pool := sound().pool
				pool.Status.Allocated, pool.ResourceVersion = 17, ""
				berth.Put(pool)
			}},
		{"the address has another pod by now, which is gone, too", func(c *cluster) { c.pods = c.pods[:1] },
			func(berth *ipamtest.Server, _ *fake.Clientset) {
				ip := sound().ips[1]
				ip.Spec.Pod.UID = "another"
				berth.Put(ip)
			}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := sound()
			test.breaks(c)
			if codes := c.audit(t, test.later); codes != nil {
				t.Errorf("found %v", codes)
			}
		})
	}
}

// The controller may write a pool's status later than the grace.
func TestStatusIsLate(t *testing.T) {
	for _, test := range []struct {
		late time.Duration
		want int
	}{{0, 1}, {time.Minute, 0}} {
		c := sound()
		c.pool.Status.Allocated = 16
		auditor, berth, _ := c.auditor(firstPause/2, nil)
		auditor.late = test.late
		looks := 0
		auditor.options.Doubts = func([]Finding, time.Time) {
			if looks++; looks == 2 {
				berth.Put(sound().pool)
			}
		}
		report, err := auditor.Run(t.Context())
		if err != nil || len(report.Findings) != test.want {
			t.Errorf("a status may be %s late: found %v, %v", test.late, report, err)
		}
	}
}

// Open questions are not forgotten when suspects are looked at again.
func TestUnknownStays(t *testing.T) {
	c := sound()
	c.pods, c.pool.Status.Allocated = c.pods[:1], 16
	spec := &c.ips[1].Spec
	spec.Pod, spec.Node, spec.LastPod = nil, "", "web-1"
	spec.Owner.APIVersion, spec.Owner.Kind, spec.Owner.PodName = "apps.kruise.io/v1alpha1", "CloneSet", ""
	custom := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme())
	custom.PrependReactor("get", "clonesets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Group: "apps.kruise.io", Resource: "clonesets"}, "web", errors.New("no right"))
	})
	report := c.report(t, func(berth *ipamtest.Server, _ *fake.Clientset) {
		pool := c.pool.DeepCopy()
		pool.Status.Allocated, pool.Status.Retained, pool.ResourceVersion = 1, 1, ""
		berth.Put(pool)
	}, custom)
	if len(report.Findings) != 0 || len(report.Unknown) != 1 || !strings.Contains(report.Unknown[0], "whether 1 addresses are still wanted: Berth may not read clonesets.apps.kruise.io") {
		t.Errorf("found %v, not found out: %q", report.Findings, report.Unknown)
	}
}

// Each code is explained, has a test, and is in the documentation.
func TestMeanings(t *testing.T) {
	var tested []Code
	for _, test := range broken {
		tested = append(tested, test.codes...)
	}
	page, err := os.ReadFile("../../../docs/reference/check.md")
	if err != nil {
		t.Fatal(err)
	}
	for code, text := range Meanings {
		if text == "" {
			t.Errorf("%s has no text", code)
		}
		if !strings.Contains(string(page), "\n| "+string(code)+" | ") {
			t.Errorf("docs/reference/check.md lacks %s", code)
		}
		// The network and the admission policies have tests of their own.
		if !strings.HasPrefix(string(code), "B5") && !strings.HasPrefix(string(code), "B6") && code != OwnerUnknown && !slices.Contains(tested, code) {
			t.Errorf("%s has no test", code)
		}
	}
}
