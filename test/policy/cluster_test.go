// SPDX-License-Identifier: Apache-2.0

// Package policy tests what an agent sees of the cluster for network policies, on a real API
// server and with the agent's rights.
package policy

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/berth-dev/berth/agent/policy"
	"github.com/berth-dev/berth/agent/policy/cluster"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/proxy"
)

const thisNode = "node1"

type clusterPolicies = gentype.ClientWithList[*policyv1alpha2.ClusterNetworkPolicy, *policyv1alpha2.ClusterNetworkPolicyList]

func newClusterPolicies(t *testing.T, config *rest.Config) *clusterPolicies {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := policyv1alpha2.Install(scheme); err != nil {
		t.Fatal(err)
	}
	config = rest.CopyConfig(config)
	group := schema.GroupVersion(policyv1alpha2.GroupVersion)
	config.GroupVersion, config.APIPath = &group, "/apis"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	objects, err := rest.RESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return gentype.NewClientWithList("clusternetworkpolicies", objects, runtime.NewParameterCodec(scheme), "",
		func() *policyv1alpha2.ClusterNetworkPolicy { return &policyv1alpha2.ClusterNetworkPolicy{} },
		func() *policyv1alpha2.ClusterNetworkPolicyList { return &policyv1alpha2.ClusterNetworkPolicyList{} })
}

// options returns the options of an agent whose requests pass the proxy.
func options(t *testing.T, w *simulation.World, p *proxy.Proxy) cluster.Options {
	t.Helper()
	config := &rest.Config{Host: p.URL(), QPS: -1}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	berth, err := client.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	about, err := metadata.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return cluster.Options{
		Node:                      thisNode,
		NetworkPolicies:           client.NewSource(kube.NetworkingV1().NetworkPolicies("")),
		ClusterPolicies:           client.NewSource(newClusterPolicies(t, config)),
		CustomResourceDefinitions: client.NewSource(about.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})),
		Namespaces:                client.NewSource(kube.CoreV1().Namespaces()),
		Pods:                      client.NewSource(kube.CoreV1().Pods("")),
		FloatingIPs:               client.NewSource[*v1alpha1.FloatingIPList](berth.FloatingIPs),
		Nodes:                     client.NewSource(kube.CoreV1().Nodes()),
		Pod: func(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
			return kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		Namespace: func(ctx context.Context, name string) (*corev1.Namespace, error) {
			return kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		},
		// Soon enough to be seen.
		Patience: simulation.Poll,
	}
}

// told repeats the cluster from what its sink is told.
type told struct {
	policies, namespaces, pods map[string]bool
}

func (s *told) SetNetworkPolicy(p *networkingv1.NetworkPolicy) {
	s.policies[p.Namespace+"/"+p.Name] = true
}
func (s *told) SetClusterPolicy(p *policyv1alpha2.ClusterNetworkPolicy) { s.policies[p.Name] = true }
func (s *told) DeletePolicy(name types.NamespacedName) {
	delete(s.policies, strings.TrimPrefix(name.String(), "/"))
}
func (s *told) SetNamespace(name string, _ map[string]string) { s.namespaces[name] = true }
func (s *told) DeleteNamespace(name string)                   { delete(s.namespaces, name) }
func (s *told) SetPod(was, is *policy.Pod) {
	if was != nil {
		delete(s.pods, described(was))
	}
	if is != nil {
		s.pods[described(is)] = true
	}
}

func described(p *policy.Pod) string {
	return fmt.Sprintf("%s app=%s %v %v", p.NamespacedName, p.Labels["app"], p.Addresses, p.Ports)
}

func text(of map[string]bool, prefixes ...string) string {
	var some []string
	for _, s := range slices.Sorted(maps.Keys(of)) {
		if slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(s, prefix) }) {
			some = append(some, s)
		}
	}
	return strings.Join(some, ", ")
}

// An agent knows what policies need of a real cluster, and asks for no more; it streams what it
// reads, and its rights suffice.
func TestCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all does this")
	}
	w := simulation.New(t, lab.ControlPlaneOptions{})
	p, err := proxy.Start(w.Ctx, w.Config, proxy.Options{Identity: proxy.ServiceAccount(w.System, "berth-agent")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	c, sink := cluster.New(options(t, w, p)), &told{map[string]bool{}, map[string]bool{}, map[string]bool{}}
	ctx, cancel := context.WithCancel(w.Ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := c.Run(ctx, sink); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	expect := func(what, policies, namespaces, pods string) {
		t.Helper()
		w.Eventually(what, func() (err error) {
			c.Do(func() {
				got := [3]string{text(sink.policies, ""), text(sink.namespaces, "shop", "bank"), text(sink.pods, "shop", "bank")}
				if want := [3]string{policies, namespaces, pods}; got != want {
					err = fmt.Errorf("told %q, want %q", got, want)
				}
			})
			return err
		})
	}
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	addPod := func(namespace, name, node, address string) *corev1.Pod {
		t.Helper()
		pods := w.Kube.CoreV1().Pods(namespace)
		pod, err := pods.Create(w.Ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
			Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
				Name: "c", Image: "none", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 80}},
			}}},
		}, metav1.CreateOptions{})
		must(nil, err)
		if address == "" {
			return pod
		}
		patch := fmt.Sprintf(`{"status":{"phase":"Running","podIP":%[1]q,"podIPs":[{"ip":%[1]q}]}}`, address)
		must(pods.Patch(w.Ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status"))
		return pod
	}
	policies := func(namespace string) interface {
		Create(context.Context, *networkingv1.NetworkPolicy, metav1.CreateOptions) (*networkingv1.NetworkPolicy, error)
		Delete(context.Context, string, metav1.DeleteOptions) error
	} {
		return w.Kube.NetworkingV1().NetworkPolicies(namespace)
	}
	for _, name := range []string{"shop", "bank"} {
		must(w.Kube.CoreV1().Namespaces().Create(w.Ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))
		_, err := w.Kube.CoreV1().ServiceAccounts(name).Create(w.Ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			must(nil, err)
		}
	}
	addPod("shop", "here", thisNode, "10.0.0.1")
	addPod("shop", "there", "node2", "10.0.1.1")
	addPod("bank", "far", "node3", "2001:db8::1")

	must(nil, c.Wait(w.Ctx))
	expect("no policy", "", "", "")
	isPods := func(call proxy.Call) bool {
		return call.Path == "/api/v1/pods" || call.Path == "/api/v1/namespaces"
	}
	if calls := p.Seen(isPods); len(calls) > 0 {
		t.Errorf("without policies the agent asks for %+v", calls)
	}

	const own, all = "shop/here app=here [10.0.0.1] [{http TCP 80}]",
		"bank/far app=far [2001:db8::1] [{http TCP 80}], shop/here app=here [10.0.0.1] [{http TCP 80}], shop/there app=there [10.0.1.1] [{http TCP 80}]"
	deny := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "deny"}}
	must(policies("shop").Create(w.Ctx, deny, metav1.CreateOptions{}))
	expect("isolation", "shop/deny", "bank, shop", own)
	allow := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "allow"}, Spec: networkingv1.NetworkPolicySpec{
		Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{}}}}},
	}}
	must(policies("shop").Create(w.Ctx, allow, metav1.CreateOptions{}))
	expect("peers", "shop/allow, shop/deny", "bank, shop", all)

	// A pod's ADD comes before the watch has told it.
	release := p.Hold("pods")
	fresh := addPod("shop", "fresh", thisNode, "")
	must(nil, c.Ensure(w.Ctx, types.NamespacedName{Namespace: "shop", Name: "fresh"}, fresh.UID))
	expect("ensured", "shop/allow, shop/deny", "bank, shop", strings.Replace(all, "shop/here", "shop/fresh app=fresh [] [{http TCP 80}], shop/here", 1))
	release()
	must(nil, w.Kube.CoreV1().Pods("shop").Delete(w.Ctx, "fresh", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	expect("deleted", "shop/allow, shop/deny", "bank, shop", all)

	// The API server cannot be reached, and what happened meanwhile is seen after it.
	accept := p.Refuse(func(*http.Request) bool { return true })
	p.CutWatches()
	must(nil, policies("shop").Delete(w.Ctx, "deny", metav1.DeleteOptions{}))
	must(nil, w.Kube.CoreV1().Pods("bank").Delete(w.Ctx, "far", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	if !c.HasSynced() {
		t.Error("an outage makes the agent forget that it knows the policies")
	}
	expect("outage", "shop/allow, shop/deny", "bank, shop", all)
	accept()
	const rest = "shop/here app=here [10.0.0.1] [{http TCP 80}], shop/there app=there [10.0.1.1] [{http TCP 80}]"
	expect("after it", "shop/allow", "bank, shop", rest)

	// Policies of administrators are an option of the cluster.
	definition, err := deploy.Manifest("cluster-network-policy/policy.networking.k8s.io_clusternetworkpolicies.yaml")
	must(nil, err)
	must(nil, deploy.Apply(w.Ctx, w.Config, definition))
	admins := newClusterPolicies(t, w.Config)
	w.Eventually("create a ClusterNetworkPolicy", func() error {
		_, err := admins.Create(w.Ctx, &policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "admin"}, Spec: policyv1alpha2.ClusterNetworkPolicySpec{
			Tier: policyv1alpha2.AdminTier, Priority: 1, Subject: policyv1alpha2.ClusterNetworkPolicySubject{Namespaces: &metav1.LabelSelector{}},
		}}, metav1.CreateOptions{})
		return err
	})
	expect("installed", "admin, shop/allow", "bank, shop", rest)
	must(nil, policies("shop").Delete(w.Ctx, "allow", metav1.DeleteOptions{}))
	expect("the pods of other nodes are dropped", "admin", "bank, shop", own)
	must(nil, w.Dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}).
		Delete(w.Ctx, cluster.DefinitionName, metav1.DeleteOptions{}))
	expect("uninstalled", "", "", "")
	if held := c.Held(); held != (cluster.Held{}) {
		t.Errorf("without policies the agent holds %+v", held)
	}

	if calls := p.Forbidden(); len(calls) > 0 {
		t.Errorf("the agent may not do %+v", calls)
	}
	isList := func(call proxy.Call) bool {
		return call.Method == http.MethodGet && !call.Watch && call.Code == http.StatusOK && (isPods(call) || strings.HasSuffix(call.Path, "policies"))
	}
	if calls := p.Seen(isList); len(calls) > 0 {
		t.Errorf("the agent reads lists and not streams: %+v", calls)
	}
}
