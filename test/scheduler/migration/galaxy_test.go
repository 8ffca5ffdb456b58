// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/galaxy"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// galaxyCluster is a cluster whose addresses Galaxy gives: the test plays Galaxy.
type galaxyCluster struct {
	*simulation.World
	mapper *restmapper.DeferredDiscoveryRESTMapper
	plugin string
}

const galaxyPools = `[
	{"nodeSubnets":["10.0.60.0/24"],"ips":["10.0.70.2~10.0.70.29","10.0.70.30~10.0.70.60"],"subnet":"10.0.70.0/24","gateway":"10.0.70.1"},
	{"routableSubnet":"10.0.60.0/24","ips":["10.0.71.2~10.0.71.9"],"subnet":"10.0.71.0/24","gateway":"10.0.71.1","vlan":7}]`

func newGalaxyCluster(t *testing.T) *galaxyCluster {
	t.Helper()
	return newGalaxyClusterFor(t, simulation.Lasts)
}

func newGalaxyClusterFor(t *testing.T, lasts time.Duration) *galaxyCluster {
	t.Helper()
	w := simulation.NewWith(t, simulation.Options{ControlPlaneOptions: lab.ControlPlaneOptions{Controllers: true}, Lasts: lasts})
	w.Nodes(2)
	w.Kubelet()
	g := &galaxyCluster{World: w, plugin: simulation.Plugin(t)}
	g.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(w.Kube.Discovery()))
	for _, crd := range []string{
		customResource("floatingips", "FloatingIP", "galaxy.k8s.io", "v1alpha1", "Cluster", `{"spec":{"type":"object","required":["key","attribute","policy","updateTime"],"properties":{
			"key":{"type":"string"},"attribute":{"type":"string"},"policy":{"type":"integer"},"updateTime":{"type":"string","format":"date-time"}}}}`),
		customResource("pools", "Pool", "galaxy.k8s.io", "v1alpha1", "Namespaced", `{"size":{"type":"integer"},"preAllocateIP":{"type":"boolean"}}`),
		customResource("tapps", "TApp", "apps.tkestack.io", "v1", "Namespaced", `{"spec":{"type":"object"}}`),
	} {
		g.apply(crd)
	}
	pools, err := json.Marshal(galaxyPools)
	if err != nil {
		t.Fatal(err)
	}
	g.apply(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"kube-system","name":"floatingip-config"},"data":{"floatingips":` + string(pools) + `}}`)
	return g
}

// customResource is a CRD as Galaxy makes its own.
func customResource(plural, kind, group, version, scope, properties string) string {
	return fmt.Sprintf(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
		"metadata":{"name":"%[1]s.%[3]s","annotations":{"api-approved.kubernetes.io":"https://github.com/kubernetes/kubernetes/pull/78458"}},
		"spec":{"group":"%[3]s","scope":"%[5]s","names":{"plural":"%[1]s","singular":"%[6]s","kind":"%[2]s"},
		"versions":[{"name":"%[4]s","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":%[7]s}}}]}}`,
		plural, kind, group, version, scope, strings.ToLower(kind), properties)
}

// apply applies an object, once its kind is served.
func (g *galaxyCluster) apply(text string) {
	g.T.Helper()
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &object.Object); err != nil {
		g.T.Fatal(err)
	}
	g.Eventually("apply "+object.GetKind()+" "+object.GetName(), func() error {
		mapping, err := g.mapper.RESTMapping(object.GroupVersionKind().GroupKind(), object.GroupVersionKind().Version)
		if err != nil {
			g.mapper.Reset()
			return err
		}
		_, err = g.Dynamic.Resource(mapping.Resource).Namespace(object.GetNamespace()).
			Apply(g.Ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: "galaxy", Force: true})
		return err
	})
}

// record writes a FloatingIP of Galaxy's. pod has the address, if not nil.
func (g *galaxyCluster) record(addr, key string, policy galaxy.Policy, pod *v1.Pod, labels ...string) {
	g.T.Helper()
	attribute := `{"NodeName":"","Uid":""}`
	if pod != nil {
		attribute = fmt.Sprintf(`{"NodeName":%q,"Uid":%q}`, pod.Spec.NodeName, pod.UID)
	}
	object := map[string]any{
		"apiVersion": "galaxy.k8s.io/v1alpha1", "kind": "FloatingIP",
		"metadata": map[string]any{"name": addr, "labels": map[string]string{}},
		"spec":     map[string]any{"key": key, "attribute": attribute, "policy": policy, "updateTime": "2024-01-02T03:04:05Z"},
	}
	for _, label := range labels {
		object["metadata"].(map[string]any)["labels"].(map[string]string)[label] = ""
	}
	text, err := json.Marshal(object)
	if err != nil {
		g.T.Fatal(err)
	}
	g.apply(string(text))
}

// bind starts a pod with an address, as Galaxy does.
func (g *galaxyCluster) bind(name, addr string) *v1.Pod {
	g.T.Helper()
	var pod *v1.Pod
	g.Eventually("wait for pod "+name, func() (err error) {
		pod, err = g.Kube.CoreV1().Pods(simulation.Namespace).Get(g.Ctx, name, metav1.GetOptions{})
		return err
	})
	err := g.Kube.CoreV1().Pods(simulation.Namespace).Bind(g.Ctx, &v1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: simulation.Namespace, Name: name, UID: pod.UID, Annotations: map[string]string{
			galaxy.AnnotationArgs: fmt.Sprintf(`{"common":{"ipinfos":[{"ip":"%s/24","vlan":0,"gateway":"10.0.70.1"}]}}`, addr),
		}},
		Target: v1.ObjectReference{Kind: "Node", Name: "node1"},
	}, metav1.CreateOptions{})
	if err != nil {
		g.T.Fatal(err)
	}
	pod = g.Bound(name)[0]
	// The imitated nodes know the address: no other live pod may have it.
	g.Kubelets.Wired(addr, pod)
	return pod
}

// ofGalaxy makes a pod Galaxy's: nobody but the test schedules it.
func ofGalaxy(annotations map[string]string) func(*v1.Pod) {
	return func(pod *v1.Pod) {
		pod.Spec.SchedulerName = "galaxy"
		one := v1.ResourceList{galaxy.ResourceENIIP: simulation.Quantity("1")}
		pod.Spec.Containers[0].Resources = v1.ResourceRequirements{Requests: one, Limits: one}
		for name, value := range annotations {
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, name, value)
		}
	}
}

var immutable = map[string]string{galaxy.AnnotationReleasePolicy: "immutable"}

// importGalaxy runs the plugin, as an account with the permissions of the
// example, and returns what it prints.
func (g *galaxyCluster) importGalaxy(wantCode int, args ...string) (out, errOut string) {
	g.T.Helper()
	args = append([]string{"import-galaxy", "--kubeconfig=" + g.ControlPlane.Kubeconfig(), "--as=migrator", "--cache-dir=" + g.T.TempDir()}, args...)
	command := exec.CommandContext(g.Ctx, g.plugin, args...)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	_ = command.Run() // judged by the exit code
	if code := command.ProcessState.ExitCode(); code != wantCode {
		g.T.Fatalf("%v: exit code %d, want %d\n%s\n%s", args, code, wantCode, &stdout, &stderr)
	}
	return stdout.String(), stderr.String()
}

// permit gives the migrator the permissions of the example, and both it and the
// controller those to read a custom kind.
func (g *galaxyCluster) permit() {
	g.T.Helper()
	objects, err := deploy.Manifest("examples/galaxy-import-rbac.yaml")
	if err != nil {
		g.T.Fatal(err)
	}
	text, err := objects[0].MarshalJSON()
	if err != nil {
		g.T.Fatal(err)
	}
	g.apply(string(text))
	g.apply(`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"tapps"},"rules":[{"apiGroups":["apps.tkestack.io"],"resources":["tapps","tapps/scale"],"verbs":["get","list","watch"]}]}`)
	subjects := map[string][]rbacv1.Subject{
		objects[0].GetName(): {{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "migrator"}},
		"tapps": {
			{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "migrator"},
			{Kind: rbacv1.ServiceAccountKind, Namespace: "berth-system", Name: "berth-controller"},
		},
	}
	for role, subjects := range subjects {
		_, err := g.Kube.RbacV1().ClusterRoleBindings().Create(g.Ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   subjects,
		}, metav1.CreateOptions{})
		if err != nil {
			g.T.Fatal(err)
		}
	}
	g.Eventually("wait until the migrator may work", func() error {
		if out, err := exec.CommandContext(g.Ctx, g.plugin, "import-galaxy", "--dry-run", "--kubeconfig="+g.ControlPlane.Kubeconfig(), "--as=migrator", "--cache-dir="+g.T.TempDir()).CombinedOutput(); err != nil && !strings.Contains(string(out), "need a decision") {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// state is all of Berth's objects, by kind and name, as short texts with the
// resource version.
func (g *galaxyCluster) state() map[string]string {
	g.T.Helper()
	state := map[string]string{}
	for _, resource := range []string{"ippools", "ipclaims", "floatingips"} {
		list, err := g.Dynamic.Resource(v1alpha1.SchemeGroupVersion.WithResource(resource)).List(g.Ctx, metav1.ListOptions{})
		if err != nil {
			g.T.Fatal(err)
		}
		for i := range list.Items {
			state[resource+"/"+list.Items[i].GetName()] = list.Items[i].GetResourceVersion()
		}
	}
	return state
}

// galaxyState is Galaxy's objects, which nobody may touch.
func (g *galaxyCluster) galaxyState() map[string]string {
	g.T.Helper()
	list, err := g.Dynamic.Resource(schema.GroupVersionResource{Group: "galaxy.k8s.io", Version: "v1alpha1", Resource: "floatingips"}).List(g.Ctx, metav1.ListOptions{})
	if err != nil {
		g.T.Fatal(err)
	}
	state := map[string]string{}
	for i := range list.Items {
		state[list.Items[i].GetName()] = list.Items[i].GetResourceVersion()
	}
	return state
}

// held describes the FloatingIP of an address.
func (g *galaxyCluster) held(addr string) string {
	g.T.Helper()
	ip, err := g.Berth.FloatingIPs.Get(g.Ctx, addr, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	if ip.Spec.Reserved {
		return "reserved in " + ip.Spec.Pool
	}
	if ip.Spec.ReleasedAt != nil {
		return "at rest in " + ip.Spec.Pool
	}
	text := fmt.Sprintf("%s %s", ip.Spec.Owner.Kind, ip.Spec.Owner.Name)
	if ip.Spec.Owner.PodName != "" {
		text += " for " + ip.Spec.Owner.PodName
	}
	if ip.Spec.Pod != nil {
		text += fmt.Sprintf(", pod %s on %s", ip.Spec.Pod.Name, ip.Spec.Node)
	}
	return text + ", " + string(ip.Spec.ReleasePolicy) + ", in " + ip.Spec.Pool
}

func (g *galaxyCluster) wantHeld(want map[string]string) {
	g.T.Helper()
	for addr, want := range want {
		if got := g.held(addr); got != want {
			g.T.Errorf("%s: %s, want %s", addr, got, want)
		}
	}
}

// fill makes workloads and records of every kind of key. It returns what they
// become.
func (g *galaxyCluster) fill() (imported map[string]string) {
	g.T.Helper()
	// Live pods.
	if _, err := g.Kube.AppsV1().StatefulSets(simulation.Namespace).Create(g.Ctx, simulation.NewSet("web", 2, ofGalaxy(immutable)), metav1.CreateOptions{}); err != nil {
		g.T.Fatal(err)
	}
	g.record("10.0.70.10", "sts_default_web_web-0", galaxy.PolicyImmutable, g.bind("web-0", "10.0.70.10"))
	g.record("10.0.70.11", "sts_default_web_web-1", galaxy.PolicyImmutable, g.bind("web-1", "10.0.70.11"))
	gate := g.deployment("gate")
	g.record("10.0.70.12", "dp_default_gate_"+gate, galaxy.PolicyImmutable, g.bind(gate, "10.0.70.12"))
	g.Create(simulation.NewPod("single", ofGalaxy(nil)), simulation.NewPod("pooled", ofGalaxy(map[string]string{galaxy.AnnotationPool: "front"})), simulation.NewPod("lost", ofGalaxy(nil)))
	g.record("10.0.70.13", "NULL_default_NULL_single", galaxy.PolicyPodDeleted, g.bind("single", "10.0.70.13"))
	g.record("10.0.71.3", "pool__front_NULL_default_NULL_pooled", galaxy.PolicyNever, g.bind("pooled", "10.0.71.3"))
	g.bind("lost", "10.0.70.14") // Galaxy has no record of it

	// Nobody has them now.
	g.apply(`{"apiVersion":"apps.tkestack.io/v1","kind":"TApp","metadata":{"namespace":"default","name":"demo"},"spec":{}}`)
	g.record("10.0.70.20", "tapp_default_demo_demo-1", galaxy.PolicyImmutable, nil)
	g.record("10.0.70.21", "dp_default_gate_", galaxy.PolicyImmutable, nil)
	g.record("10.0.70.22", "sts_default_web_web-7", galaxy.PolicyNever, nil)
	g.record("10.0.70.23", "sts_default_gone_gone-0", galaxy.PolicyNever, nil)
	g.record("10.0.71.4", "pool__front_", galaxy.PolicyNever, nil)
	g.record("10.0.70.24", "pool__reserved-for-node_", galaxy.PolicyNever, nil, "reserved")
	g.record("10.0.72.5", "sts_default_web_web-8", galaxy.PolicyNever, nil)
	g.apply(`{"apiVersion":"galaxy.k8s.io/v1alpha1","kind":"Pool","metadata":{"namespace":"kube-system","name":"front"},"size":3,"preAllocateIP":false}`)

	// Nothing becomes of them.
	g.record("10.0.70.40", "sts_default_gone_gone-1", galaxy.PolicyImmutable, nil)
	g.record("10.0.70.41", "NULL_default_NULL_over", galaxy.PolicyPodDeleted, nil)
	g.record("10.0.70.42", "pool__a_b_dp_default_gate_gate-1-x", galaxy.PolicyNever, nil)

	return map[string]string{
		"10.0.70.10": "StatefulSet web for web-0, pod web-0 on node1, Retain, in galaxy-10.0.70.2",
		"10.0.70.11": "StatefulSet web for web-1, pod web-1 on node1, Retain, in galaxy-10.0.70.2",
		"10.0.70.12": "Deployment gate, pod " + gate + " on node1, Retain, in galaxy-10.0.70.2",
		"10.0.70.13": "Pod single for single, pod single on node1, PodDeleted, in galaxy-10.0.70.2",
		"10.0.70.14": "Pod lost for lost, pod lost on node1, PodDeleted, in galaxy-10.0.70.2",
		"10.0.70.20": "TApp demo for demo-1, Retain, in galaxy-10.0.70.2",
		"10.0.70.21": "Deployment gate, Retain, in galaxy-10.0.70.2",
		"10.0.70.22": "StatefulSet web for web-7, Never, in galaxy-10.0.70.2",
		"10.0.70.23": "StatefulSet gone for gone-0, Never, in galaxy-10.0.70.2",
		"10.0.70.24": "reserved in galaxy-10.0.70.2",
		"10.0.71.3":  "IPClaim front, pod pooled on node1, Never, in galaxy-10.0.71.2",
		"10.0.71.4":  "IPClaim front, Never, in galaxy-10.0.71.2",
		"10.0.72.5":  "StatefulSet web for web-8, Never, in ",
	}
}

// deployment makes a Deployment with two replicas of Galaxy's pods, and returns
// one of them.
func (g *galaxyCluster) deployment(name string) (pod string) {
	g.T.Helper()
	replicas := int32(2)
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: simulation.Namespace},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template: simulation.Template(name, ofGalaxy(immutable)),
		},
	}
	if _, err := g.Kube.AppsV1().Deployments(simulation.Namespace).Create(g.Ctx, deployment, metav1.CreateOptions{}); err != nil {
		g.T.Fatal(err)
	}
	return g.podWithout(name)
}

// podWithout waits for a pod of an app that is not bound.
func (g *galaxyCluster) podWithout(app string) (pod string) {
	g.T.Helper()
	g.Eventually("wait for a pod of "+app, func() error {
		list, err := g.Kube.CoreV1().Pods(simulation.Namespace).List(g.Ctx, metav1.ListOptions{LabelSelector: "app=" + app})
		if err != nil {
			return err
		}
		i := slices.IndexFunc(list.Items, func(pod v1.Pod) bool { return pod.Spec.NodeName == "" })
		if i < 0 {
			return fmt.Errorf("none of %d waits", len(list.Items))
		}
		pod = list.Items[i].Name
		return nil
	})
	return pod
}

// A cluster goes from Galaxy to Berth.
func TestImportGalaxy(t *testing.T) {
	t.Parallel()
	g := newGalaxyCluster(t)
	imported := g.fill()
	g.permit()
	galaxys := g.galaxyState()

	// A plan changes nothing, whichever way it is printed.
	plan, _ := g.importGalaxy(2, "--dry-run")
	for _, want := range []string{
		"create   IPPool       galaxy-10.0.70.2", "create   IPClaim      default/front", "size 3",
		"stale    FloatingIP   10.0.70.40", "stale    FloatingIP   10.0.70.41", "skip     FloatingIP   10.0.70.42",
		"IPPool:     2 to create", "FloatingIP: 13 to create, 2 stale, 1 skipped", "outside of every pool",
		"6 addresses belong to live pods", "Nothing was changed. The API server would accept all of it.",
	} {
		if !strings.Contains(plan, want) {
			t.Errorf("the plan does not say %q:\n%s", want, plan)
		}
	}
	objects, remarks := g.importGalaxy(2, "--dry-run", "-o", "yaml")
	if !strings.Contains(remarks, "skip FloatingIP 10.0.70.42") {
		t.Errorf("with -o yaml it does not say what is skipped:\n%s", remarks)
	}
	if diff := cmp.Diff(map[string]string{}, g.state()); diff != "" {
		t.Fatalf("a plan made objects:\n%s", diff)
	}

	g.importGalaxy(2)
	g.wantHeld(imported)
	g.wantUIDs()
	before := g.state()
	if want := len(imported) + 3; len(before) != want {
		t.Errorf("there are %d objects, want %d: %v", len(before), want, before)
	}
	g.wantObjects(objects, before)
	again, _ := g.importGalaxy(2)
	if diff := cmp.Diff(before, g.state()); diff != "" {
		t.Errorf("the second run changed objects:\n%s", diff)
	}
	if want := "FloatingIP: 13 same, 2 stale, 1 skipped"; !strings.Contains(again, want) {
		t.Errorf("the second run does not say %q:\n%s", want, again)
	}

	// Galaxy still works: the Deployment's other pod gets the parked address.
	second := g.podWithout("gate")
	g.record("10.0.70.21", "dp_default_gate_"+second, galaxy.PolicyImmutable, g.bind(second, "10.0.70.21"))
	g.importGalaxy(2)
	imported["10.0.70.21"] = "Deployment gate, pod " + second + " on node1, Retain, in galaxy-10.0.70.2"
	g.wantHeld(imported)
	delete(galaxys, "10.0.70.21") // the test wrote it
	after := g.galaxyState()
	delete(after, "10.0.70.21")
	if diff := cmp.Diff(galaxys, after); diff != "" {
		t.Errorf("Galaxy's objects were changed:\n%s", diff)
	}

	// Berth starts, its pools are disabled: nothing new is given.
	g.Scheduler(simulation.SchedulerOptions{})
	g.Controller()
	g.Create(simulation.NewPod("new"))
	g.Refused("new", "disabled")
	// A workload moves: its pods get their addresses.
	g.moveSet("web")
	for pod, want := range map[string]string{"web-0": "10.0.70.10", "web-1": "10.0.70.11"} {
		g.Eventually("wait for "+pod+" to be Berth's", func() error {
			now, err := g.Kube.CoreV1().Pods(simulation.Namespace).Get(g.Ctx, pod, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if got := now.Annotations[v1alpha1.AnnotationFloatingIPs]; now.Spec.NodeName == "" || got != want {
				return fmt.Errorf("it has %q on node %q, want %s; %v", got, now.Spec.NodeName, want, simulation.ConditionTexts(now))
			}
			return nil
		})
	}
	// Pods that stay with Galaxy keep their addresses until they go.
	g.Delete("single")
	g.Eventually("wait for the address of a deleted pod to be freed", func() error {
		if got := g.held("10.0.70.13"); got != "at rest in galaxy-10.0.70.2" {
			return fmt.Errorf("it is %s", got)
		}
		return nil
	})
	g.enable("galaxy-10.0.70.2", "galaxy-10.0.71.2")
	if got := g.Address("new"); imported[got] != "" && got != "10.0.70.13" {
		t.Errorf("a new pod got %s, which is %s", got, imported[got])
	}
	delete(imported, "10.0.70.13")
	imported["10.0.70.10"] = g.held("10.0.70.10")
	imported["10.0.70.11"] = g.held("10.0.70.11")
	g.wantHeld(imported)
}

// wantUIDs checks that owners have the UIDs of existing objects.
func (g *galaxyCluster) wantUIDs() {
	g.T.Helper()
	set, err := g.Kube.AppsV1().StatefulSets(simulation.Namespace).Get(g.Ctx, "web", metav1.GetOptions{})
	if err != nil {
		g.T.Fatal(err)
	}
	claim, err := g.Berth.IPClaims(simulation.Namespace).Get(g.Ctx, "front", metav1.GetOptions{})
	if err != nil {
		g.T.Fatal(err)
	}
	for addr, want := range map[string]types.UID{"10.0.70.10": set.UID, "10.0.70.22": set.UID, "10.0.71.3": claim.UID, "10.0.71.4": claim.UID} {
		ip, err := g.Berth.FloatingIPs.Get(g.Ctx, addr, metav1.GetOptions{})
		if err != nil {
			g.T.Fatal(err)
		}
		if ip.Spec.Owner.UID != want {
			g.T.Errorf("%s belongs to %s, want %s", addr, ip.Spec.Owner.UID, want)
		}
	}
}

// wantObjects checks that what -o yaml printed are the objects that were made, and
// that they could be made of it.
func (g *galaxyCluster) wantObjects(text string, made map[string]string) {
	g.T.Helper()
	list := &unstructured.UnstructuredList{}
	var content map[string]any
	if err := yaml.Unmarshal([]byte(text), &content); err != nil {
		g.T.Fatal(err)
	}
	list.SetUnstructuredContent(content)
	resources := map[string]string{"IPPool": "ippools", "IPClaim": "ipclaims", "FloatingIP": "floatingips"}
	for i := range list.Items {
		object := &list.Items[i]
		resource := resources[object.GetKind()]
		if made[resource+"/"+object.GetName()] == "" {
			g.T.Errorf("%s %s was printed but not made", object.GetKind(), object.GetName())
		}
		object.SetName(object.GetName())
		_, err := g.Dynamic.Resource(v1alpha1.SchemeGroupVersion.WithResource(resource)).Namespace(object.GetNamespace()).
			Apply(g.Ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: "kubectl", Force: true, DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			g.T.Errorf("apply what was printed: %v", err)
		}
	}
	if len(list.Items) != len(made) {
		g.T.Errorf("%d objects were printed, %d made", len(list.Items), len(made))
	}
}

// moveSet makes a StatefulSet's pods Berth's, which replaces them.
func (g *galaxyCluster) moveSet(name string) {
	g.T.Helper()
	patch := fmt.Sprintf(`[
		{"op":"replace","path":"/spec/template/spec/schedulerName","value":%q},
		{"op":"replace","path":"/spec/template/spec/containers/0/resources","value":{"limits":{%q:"1"},"requests":{%q:"1"}}},
		{"op":"replace","path":"/spec/template/metadata/annotations","value":{%q:"Retain"}}]`,
		simulation.SchedulerName, v1alpha1.ResourceIP, v1alpha1.ResourceIP, v1alpha1.AnnotationReleasePolicy)
	if _, err := g.Kube.AppsV1().StatefulSets(simulation.Namespace).Patch(g.Ctx, name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		g.T.Fatal(err)
	}
}

// enable lets Berth allocate from pools.
func (g *galaxyCluster) enable(pools ...string) {
	g.T.Helper()
	for _, pool := range pools {
		g.PatchPool(pool, `{"spec":{"disabled":false}}`)
	}
}

// Where something is wrong nothing is made, not even what would be right.
func TestImportGalaxyAllOrNothing(t *testing.T) {
	t.Parallel()
	g := newGalaxyCluster(t)
	g.permit()
	g.record("10.0.71.4", "pool__front_", galaxy.PolicyNever, nil)
	g.record("10.0.70.24", "pool__reserved-for-node_", galaxy.PolicyNever, nil, "reserved")
	for _, test := range []struct {
		name string
		args []string
		want string
	}{
		{"a namespace that does not exist", []string{"--claim-namespace=front=nowhere"}, `create IPClaim nowhere/front: namespaces "nowhere" not found`},
		{"no such ConfigMap", []string{"--configmap-key=pools"}, `ConfigMap kube-system/floatingip-config has no key "pools"`},
		{"a prefix that is no name", []string{"--pool-prefix=Galaxy_"}, `"Galaxy_10.0.70.2" cannot be the name of an IPPool`},
		{"bad pools", []string{"-f", g.File("pools-*.json", []any{map[string]any{"gateway": "10.0.70.1/24"}})}, "correct a copy and pass it with -f"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, errOut := g.importGalaxy(1, test.args...)
			if !strings.Contains(errOut, test.want) {
				t.Errorf("it says\n%s\nwant %q", errOut, test.want)
			}
			if diff := cmp.Diff(map[string]string{}, g.state()); diff != "" {
				t.Errorf("it made objects:\n%s", diff)
			}
		})
	}
	g.importGalaxy(0, "--claim-namespace=front=default", "--enable-pools")
	g.wantHeld(map[string]string{"10.0.71.4": "IPClaim front, Never, in galaxy-10.0.71.2", "10.0.70.24": "reserved in galaxy-10.0.70.2"})
}
