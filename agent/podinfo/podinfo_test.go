// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/galaxy"
	"github.com/berth-dev/berth/ipam/ipamtest"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/wakeup"
)

const thisNode = "node-1"

// fakeIPs has the FloatingIPs of the API. It answers with err if err is set.
type fakeIPs struct {
	mu  sync.Mutex
	ips map[string]*v1alpha1.FloatingIP
	err error
	// patches is the number of calls of Patch, asked of Get and List.
	patches, asked int
}

// List understands the field selector of a node, as the API server does.
func (f *fakeIPs) List(_ context.Context, o metav1.ListOptions) (*v1alpha1.FloatingIPList, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	list := &v1alpha1.FloatingIPList{}
	for _, ip := range f.ips {
		if "spec.node="+ip.Spec.Node == o.FieldSelector {
			list.Items = append(list.Items, *ip.DeepCopy())
		}
	}
	return list, f.err
}

func (f *fakeIPs) Get(_ context.Context, name string, _ metav1.GetOptions) (*v1alpha1.FloatingIP, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	if f.err != nil {
		return nil, f.err
	}
	if ip := f.ips[name]; ip != nil {
		return ip.DeepCopy(), nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Group: "berth.dev", Resource: "floatingips"}, name)
}

// Patch changes the status as the API server does.
func (f *fakeIPs) Patch(_ context.Context, name string, kind types.PatchType, patch []byte, _ metav1.PatchOptions, subresources ...string) (*v1alpha1.FloatingIP, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.patches++
	if f.err != nil {
		return nil, f.err
	}
	now := f.ips[name]
	if now == nil || kind != types.MergePatchType || !slices.Equal(subresources, []string{"status"}) {
		return nil, fmt.Errorf("%s of %s, %q", kind, name, subresources)
	}
	var change v1alpha1.FloatingIP
	if err := json.Unmarshal(patch, &change); err != nil {
		return nil, err
	}
	if change.UID != now.UID || change.ResourceVersion != now.ResourceVersion {
		return nil, apierrors.NewConflict(schema.GroupResource{Group: "berth.dev", Resource: "floatingips"}, name, errors.New("changed"))
	}
	now.Status = change.Status
	return now.DeepCopy(), nil
}

// fakePods are pods of a fake clientset, which does not support the list at the begin of a
// watch.
type fakePods struct{ corev1client.PodInterface }

func (fakePods) IsWatchListSemanticsUnSupported() bool { return true }

func podsOf(client *fake.Clientset) func(namespace string) Pods {
	return func(namespace string) Pods { return fakePods{client.CoreV1().Pods(namespace)} }
}

func fip(address, uid, node string) *v1alpha1.FloatingIP {
	ip := &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: address, ResourceVersion: "7"}, Spec: v1alpha1.FloatingIPSpec{
		Address: address, Node: node, Network: &v1alpha1.Network{Subnet: "10.0.70.0/24", Gateway: "10.0.70.1", VLAN: 7},
	}}
	if uid != "" {
		ip.Spec.Pod = &v1alpha1.PodReference{Name: "web-0", UID: types.UID(uid)}
	}
	return ip
}

func podObject(uid string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-0", UID: types.UID(uid)},
		Spec:       corev1.PodSpec{NodeName: thisNode, Containers: []corev1.Container{{Name: "c"}}},
	}
	for _, f := range change {
		f(p)
	}
	return p
}

func mirror(p *corev1.Pod)    { p.Annotations = map[string]string{annotationMirror: "static"} }
func elsewhere(p *corev1.Pod) { p.Spec.NodeName = "node-2" }

func TestPod(t *testing.T) {
	cases := map[string]struct {
		object *corev1.Pod
		uid    string
		is     error
	}{
		"the same":      {podObject("u1"), "u1", nil},
		"no UID given":  {podObject("u1"), "", nil},
		"static pod":    {podObject("u1", mirror), "static", nil},
		"another":       {podObject("u2"), "u1", ErrPodReplaced},
		"on other node": {podObject("u1", elsewhere), "u1", ErrPodReplaced},
		"none":          {nil, "u1", ErrPodNotFound},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			if c.object != nil {
				client = fake.NewClientset(c.object)
			}
			p, err := New(thisNode, podsOf(client), &fakeIPs{}, podrequest.Reader{}).Pod(t.Context(), "default", "web-0", c.uid)
			if !errors.Is(err, c.is) || c.is == nil && p.UID != string(c.object.UID) {
				t.Errorf("Pod() = %+v, %v, want %v", p, err, c.is)
			}
		})
	}
}

// The kubelet's name for a static pod identifies it: its mirror may be deleted and made anew while
// it runs.
func TestStaticPod(t *testing.T) {
	named := func(hash string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Annotations = map[string]string{annotationMirror: hash} }
	}
	finished := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
	pod := api.Pod{Namespace: "default", Name: "web-0", UID: "u1", Static: "static"}
	older := pod
	older.Static = "" // of an agent that did not know static pods
	for name, c := range map[string]struct {
		object        *corev1.Pod
		pod           api.Pod
		alive, mirror bool
	}{
		"the same mirror":        {podObject("u1", mirror), pod, true, true},
		"of an older agent":      {podObject("u1", mirror), older, true, true},
		"a new mirror":           {podObject("u2", mirror), pod, true, true},
		"no mirror":              {nil, pod, true, false},
		"another manifest":       {podObject("u2", named("changed")), pod, false, false},
		"finished":               {podObject("u2", mirror, finished), pod, false, true},
		"the name of another":    {podObject("u2"), pod, false, false},
		"mirror on another node": {podObject("u2", mirror, elsewhere), pod, false, false},
		"an ordinary pod":        {podObject("u2"), older, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			if c.object != nil {
				client = fake.NewClientset(c.object)
			}
			n := New(thisNode, podsOf(client), &fakeIPs{}, podrequest.Reader{})
			if alive, err := n.Alive(t.Context(), c.pod); alive != c.alive || err != nil {
				t.Errorf("Alive() = %v, %v, want %v", alive, err, c.alive)
			}
			if c.object != nil && c.object.Spec.NodeName == thisNode {
				must(t, n.informer.GetStore().Add(c.object))
			}
			if _, known := n.Annotations(c.pod); known != c.mirror {
				t.Errorf("Annotations() knows the pod: %v, want %v", known, c.mirror)
			}
			want := c.pod
			if c.mirror {
				want.UID = string(c.object.UID)
			}
			if got := n.Mirror(c.pod); got != want {
				t.Errorf("Mirror() = %+v, want %+v", got, want)
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestPodWhenReady(t *testing.T) {
	for text, want := range map[string]bool{"": false, v1alpha1.AdvertiseReady: true, "yes": false} {
		pod := podObject("u1", func(p *corev1.Pod) { p.Annotations = map[string]string{v1alpha1.AnnotationAdvertise: text} })
		p, err := New(thisNode, podsOf(fake.NewClientset(pod)), &fakeIPs{}, podrequest.Reader{}).Pod(t.Context(), "default", "web-0", "u1")
		if err != nil || p.WhenReady != want {
			t.Errorf("%q: WhenReady = %t, %v", text, p.WhenReady, err)
		}
	}
}

func TestWanted(t *testing.T) {
	const alias = galaxy.ResourceENIIP
	asks := func(name corev1.ResourceName, quantity string) corev1.Container {
		list := corev1.ResourceList{name: resource.MustParse(quantity)}
		return corev1.Container{Resources: corev1.ResourceRequirements{Requests: list, Limits: list}}
	}
	limited := corev1.Container{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{v1alpha1.ResourceIP: resource.MustParse("1")}}}
	always := corev1.ContainerRestartPolicyAlways
	sidecar := asks(v1alpha1.ResourceIP, "2")
	sidecar.RestartPolicy = &always
	one, two, three := asks(v1alpha1.ResourceIP, "1"), asks(v1alpha1.ResourceIP, "2"), asks(v1alpha1.ResourceIP, "3")
	for name, c := range map[string]struct {
		containers, inits []corev1.Container
		want, aliased     int
	}{
		"none":                {[]corev1.Container{{}}, nil, 0, 0},
		"request":             {[]corev1.Container{{}, one}, nil, 1, 1},
		"limit only":          {[]corev1.Container{limited}, nil, 1, 1},
		"zero":                {[]corev1.Container{asks(v1alpha1.ResourceIP, "0")}, nil, 0, 0},
		"sum":                 {[]corev1.Container{one, two}, nil, 3, 3},
		"init container":      {nil, []corev1.Container{one}, 1, 1},
		"init container more": {[]corev1.Container{one}, []corev1.Container{three, two}, 3, 3},
		"init container less": {[]corev1.Container{two}, []corev1.Container{one}, 2, 2},
		"sidecar":             {[]corev1.Container{one}, []corev1.Container{sidecar, two}, 4, 4},
		"enormous":            {[]corev1.Container{asks(v1alpha1.ResourceIP, "9E"), asks(v1alpha1.ResourceIP, "9E")}, nil, math.MaxInt32, math.MaxInt32},
		"alias":               {[]corev1.Container{asks(alias, "1")}, nil, 0, 1},
		"alias, two":          {[]corev1.Container{asks(alias, "1"), asks(alias, "2")}, nil, 0, 3},
		"alias, zero":         {[]corev1.Container{asks(alias, "0")}, nil, 0, 0},
		"alias in init":       {nil, []corev1.Container{asks(alias, "1")}, 0, 1},
		"both":                {[]corev1.Container{asks(alias, "1"), two}, nil, 2, 2},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: c.containers, InitContainers: c.inits}}
		plain, aliased := New(thisNode, podsOf(fake.NewClientset()), &fakeIPs{}, podrequest.Reader{}), New(thisNode, podsOf(fake.NewClientset()), &fakeIPs{}, podrequest.Reader{Galaxy: true})
		if got := plain.fromAPI(pod).Wants; got != c.want {
			t.Errorf("%s: Wants = %d, want %d", name, got, c.want)
		}
		if got := aliased.fromAPI(pod).Wants; got != c.aliased {
			t.Errorf("%s: with the alias Wants = %d, want %d", name, got, c.aliased)
		}
	}
}

// The kubelet forgets the functions of a pod that has finished or is gone.
func TestFunctions(t *testing.T) {
	n := New(thisNode, podsOf(fake.NewClientset()), &fakeIPs{}, podrequest.Reader{})
	pod := podObject("u1", func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{v1alpha1.ResourceVF: resource.MustParse("2"), v1alpha1.ResourceIP: resource.MustParse("1")}
	})
	for name, c := range map[string]struct {
		phase corev1.PodPhase
		uid   string
		want  int64
	}{
		"pending":  {corev1.PodPending, "u1", 2},
		"running":  {corev1.PodRunning, "u1", 2},
		"finished": {corev1.PodSucceeded, "u1", 0},
		"failed":   {corev1.PodFailed, "u1", 0},
		"replaced": {corev1.PodRunning, "u0", 0},
	} {
		p := pod.DeepCopy()
		p.Status.Phase = c.phase
		kept, err := trim(p)
		if err == nil {
			err = n.informer.GetStore().Add(kept)
		}
		if got := n.Functions(api.Pod{Namespace: "default", Name: "web-0", UID: c.uid}); got != c.want || err != nil {
			t.Errorf("%s: Functions() = %d, want %d; %v", name, got, c.want, err)
		}
	}
	if got := n.Functions(api.Pod{Namespace: "default", Name: "web-1", UID: "u1"}); got != 0 {
		t.Errorf("Functions() = %d of an unknown pod", got)
	}
}

// A pod gets the addresses that record it, in the order of its request, whatever its annotation
// says.
func TestAddresses(t *testing.T) {
	of := func(address string, index int32, uid, node string) *v1alpha1.FloatingIP {
		ip := fip(address, uid, node)
		ip.Spec.Index = index
		return ip
	}
	broken := of("10.0.70.8", 0, "broken", thisNode)
	broken.Spec.Network.Subnet = "10.0.70.0"
	bare := of("10.0.70.9", 0, "bare", thisNode)
	bare.Spec.Network = nil
	six := of("2001-0db8-0070-0000-0000-0000-0000-0005", 1, "three", thisNode)
	six.Spec.Address, six.Spec.Network = "2001:db8:70::5", &v1alpha1.Network{Subnet: "2001:db8:70::/64", Gateway: "2001:db8:70::1", VLAN: 7}
	moved := of("10.0.70.13", 0, "moved", thisNode)
	moved.Spec.Pod.Failover = true
	ips := &fakeIPs{ips: map[string]*v1alpha1.FloatingIP{}}
	for _, ip := range []*v1alpha1.FloatingIP{
		of("10.0.70.3", 0, "one", thisNode), of("10.0.70.5", 0, "three", thisNode), six, of("10.0.70.4", 2, "three", thisNode),
		of("10.0.70.6", 0, "u2", "node-2"), of("10.0.70.7", 0, "", ""), broken, bare, of("10.0.70.10", 0, "elsewhere", "node-2"),
		of("10.0.70.11", 0, "twice", thisNode), of("10.0.70.12", 0, "twice", thisNode), of("10.0.70.14", 1, "twice", thisNode), moved,
	} {
		ips.ips[ip.Name] = ip
	}
	const all = "10.0.70.5 2001:db8:70::5 10.0.70.4"
	cases := map[string]struct {
		uid   string
		wants int
		hint  string
		want  string
		is    error
		text  string
	}{
		"own":            {"one", 1, "10.0.70.3", "10.0.70.3", nil, ""},
		"with spaces":    {"one", 1, " 10.0.70.3 ,", "10.0.70.3", nil, ""},
		"several":        {"three", 3, "10.0.70.5,2001-0db8-0070-0000-0000-0000-0000-0005,10.0.70.4", all, nil, ""},
		"another order":  {"three", 3, "10.0.70.4,2001-0db8-0070-0000-0000-0000-0000-0005,10.0.70.5", all, nil, ""},
		"dropped":        {"one", 1, "", "10.0.70.3", nil, ""},
		"several, none":  {"three", 3, "", all, nil, ""},
		"some dropped":   {"three", 3, "10.0.70.4", all, nil, ""},
		"one added":      {"one", 1, "10.0.70.3,10.0.70.6", "10.0.70.3", nil, ""},
		"another's":      {"one", 1, "10.0.70.6", "10.0.70.3", nil, ""},
		"nobody's":       {"one", 1, "10.0.70.7", "10.0.70.3", nil, ""},
		"missing":        {"one", 1, "10.0.70.99", "10.0.70.3", nil, ""},
		"no address":     {"one", 1, "web", "10.0.70.3", nil, ""},
		"too many":       {"one", 1, "10.0.70.1,10.0.70.2,10.0.70.3,10.0.70.4,10.0.70.5,10.0.70.6,10.0.70.7,10.0.70.8,10.0.70.9", "10.0.70.3", nil, ""},
		"two attempts":   {"twice", 2, "10.0.70.12,10.0.70.14", "10.0.70.12 10.0.70.14", nil, ""},
		"two, dropped":   {"twice", 2, "", "10.0.70.11 10.0.70.14", nil, ""},
		"failover":       {"moved", 1, "10.0.70.13", "10.0.70.13 moved", nil, ""},
		"has none":       {"u3", 1, "", "", ErrNotPlaced, ""},
		"has none, says": {"u3", 1, "10.0.70.6", "", ErrNotHolder, `pod web-0 with UID u2 on node "node-2" holds it`},
		"on other node":  {"elsewhere", 1, "10.0.70.10", "", ErrNotHolder, `bound to node "node-2"`},
		"too few":        {"one", 2, "10.0.70.3", "", ErrTooFew, "it requests 2 and has 1 on node " + thisNode},
		"broken network": {"broken", 1, "10.0.70.8", "", nil, "spec.network.subnet"},
		"no network":     {"bare", 1, "", "", nil, "no spec.network"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			pod := Pod{Pod: api.Pod{Namespace: "default", Name: "web-0", UID: c.uid}, Hint: c.hint, Wants: c.wants}
			got, err := New(thisNode, podsOf(fake.NewClientset()), ips, podrequest.Reader{}).Addresses(t.Context(), pod)
			if c.want != "" {
				var texts []string
				for _, a := range got {
					texts = append(texts, a.Address.Address.String())
					if a.Record.Failover {
						texts = append(texts, "moved")
					}
					if a.VLAN != 7 || !slices.Contains([]string{"10.0.70.1", "2001:db8:70::1"}, a.Gateway.String()) || !a.Subnet.Contains(a.Gateway) {
						t.Errorf("Addresses() has %+v", a)
					}
				}
				if text := strings.Join(texts, " "); err != nil || text != c.want {
					t.Errorf("Addresses() = %s, %v, want %s", text, err, c.want)
				}
				return
			}
			if err == nil || c.is != nil && !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("Addresses() = %v, %v, want %v with %q", got, err, c.is, c.text)
			}
		})
	}
}

// The runtime asks again and again for a pod that no scheduler of Berth's bound: the API server is
// asked for all FloatingIPs of the node a few times only.
func TestListsSeldom(t *testing.T) {
	ips := &fakeIPs{}
	n := New(thisNode, podsOf(fake.NewClientset()), ips, podrequest.Reader{})
	for range 100 {
		if _, err := n.Addresses(t.Context(), Pod{Pod: api.Pod{UID: "u1"}, Wants: 1}); !errors.Is(err, ErrNotPlaced) {
			t.Fatal(err)
		}
	}
	if ips.asked == 0 || ips.asked > 10 {
		t.Errorf("%d requests for 100 ADDs", ips.asked)
	}
}

// A node has had many addresses: it keeps nothing for those whose pods are gone.
func TestKeepsNothing(t *testing.T) {
	ips := &fakeIPs{ips: map[string]*v1alpha1.FloatingIP{}}
	n := New(thisNode, podsOf(fake.NewClientset()), ips, podrequest.Reader{})
	pod := api.Pod{Namespace: "default", Name: "web-0", UID: "u1"}
	for i := range 100 {
		address := fmt.Sprintf("10.0.70.%d", i+1)
		ips.ips[address] = fip(address, "u1", thisNode)
		if _, err := n.Addresses(t.Context(), Pod{Pod: pod, Hint: address, Wants: 1}); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Standing(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := n.Holds(t.Context(), pod, api.Address{Address: netip.MustParseAddr(address)}); err != nil {
			t.Fatal(err)
		}
		delete(ips.ips, address)
	}
	for field, value := range reflect.ValueOf(n).Elem().Fields() {
		if value.Type() != reflect.TypeFor[sync.Map]() {
			continue
		}
		kept := 0
		(*sync.Map)(value.Addr().UnsafePointer()).Range(func(any, any) bool { kept++; return true })
		if kept > 0 {
			t.Errorf("%s keeps something for %d addresses", field.Name, kept)
		}
	}
}

// slowIPs answers when it has all requests.
type slowIPs struct {
	fakeIPs
	asked sync.WaitGroup
}

func (s *slowIPs) Get(ctx context.Context, name string, options metav1.GetOptions) (*v1alpha1.FloatingIP, error) {
	s.asked.Done()
	s.asked.Wait()
	return s.fakeIPs.Get(ctx, name, options)
}

// The pod waits for all answers of the API at once, and not for one after another.
func TestAddressesAtTheSameTime(t *testing.T) {
	ips := &slowIPs{fakeIPs: fakeIPs{ips: map[string]*v1alpha1.FloatingIP{
		"10.0.70.4": fip("10.0.70.4", "u1", thisNode), "10.0.70.5": fip("10.0.70.5", "u1", thisNode),
	}}}
	ips.asked.Add(2)
	got, err := New(thisNode, podsOf(fake.NewClientset()), ips, podrequest.Reader{}).Addresses(t.Context(), Pod{Pod: api.Pod{UID: "u1"}, Hint: "10.0.70.5,10.0.70.4", Wants: 2})
	if err != nil || len(got) != 2 {
		t.Errorf("Addresses() = %v, %v", got, err)
	}
}

// A 404 is proof only from the API server and about the object.
func TestHolds(t *testing.T) {
	addr := api.Address{}
	if err := addr.Address.UnmarshalText([]byte("10.0.70.5")); err != nil {
		t.Fatal(err)
	}
	resource := schema.GroupResource{Group: "berth.dev", Resource: "floatingips"}
	cases := map[string]struct {
		ip   *v1alpha1.FloatingIP
		err  error
		lost bool
		ok   bool
	}{
		"holds":          {ip: fip("10.0.70.5", "u1", thisNode), ok: true},
		"moved":          {ip: fip("10.0.70.5", "u2", "node-2"), lost: true},
		"freed":          {lost: true},
		"not served":     {err: apierrors.NewGenericServerResponse(404, "get", resource, "10.0.70.5", "404 page not found", 0, true)},
		"unreachable":    {err: errors.New("dial tcp: i/o timeout")},
		"not authorized": {err: apierrors.NewForbidden(resource, "10.0.70.5", nil)},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			ips := &fakeIPs{err: c.err, ips: map[string]*v1alpha1.FloatingIP{}}
			if c.ip != nil {
				ips.ips[c.ip.Name] = c.ip
			}
			err := New(thisNode, podsOf(fake.NewClientset()), ips, podrequest.Reader{}).Holds(t.Context(), api.Pod{UID: "u1"}, addr)
			if (err == nil) != c.ok || errors.Is(err, ErrNotHolder) != c.lost {
				t.Errorf("Holds() = %v", err)
			}
		})
	}
}

// One question tells what all pods of the node hold, before the watch knows them and after.
func TestStanding(t *testing.T) {
	ips := &fakeIPs{ips: map[string]*v1alpha1.FloatingIP{
		"10.0.70.5": fip("10.0.70.5", "u1", thisNode), "10.0.70.6": fip("10.0.70.6", "u1", thisNode), "10.0.70.7": fip("10.0.70.7", "u2", thisNode),
		"10.0.70.8": fip("10.0.70.8", "u1", "node-2"), "10.0.70.9": fip("10.0.70.9", "", thisNode),
	}}
	client := fake.NewClientset(podObject("u1"), podObject("u3", func(p *corev1.Pod) { p.Name, p.Status.Phase = "done", corev1.PodFailed }))
	n := New(thisNode, podsOf(client), ips, podrequest.Reader{})
	for _, watched := range []bool{false, true} {
		if watched {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go n.informer.RunWithContext(ctx)
			if !n.WaitForSync(ctx) {
				t.Fatal("the watch does not start")
			}
		}
		ips.asked = 0
		s, err := n.Standing(t.Context())
		if err != nil || ips.asked != 1 {
			t.Fatalf("Standing() = %v after %d questions, want one", err, ips.asked)
		}
		pod := api.Pod{Namespace: "default", Name: "web-0", UID: "u1"}
		for _, c := range []struct {
			name      string
			pod       api.Pod
			addresses string
			want      bool
		}{
			{"all", pod, "10.0.70.5,10.0.70.6", true},
			{"none wanted", pod, "", true},
			{"one of another pod", pod, "10.0.70.5,10.0.70.7", false},
			{"one on another node", pod, "10.0.70.5,10.0.70.8", false},
			{"one that nobody holds", pod, "10.0.70.9", false},
			{"one that is not there", pod, "10.0.70.10", false},
			{"a pod that was replaced", api.Pod{Namespace: "default", Name: "web-0", UID: "u2"}, "10.0.70.7", false},
			{"a pod that has finished", api.Pod{Namespace: "default", Name: "done", UID: "u3"}, "", false},
			{"a pod that is gone", api.Pod{Namespace: "default", Name: "gone", UID: "u2"}, "10.0.70.7", false},
		} {
			var addrs []api.Address
			for text := range strings.SplitSeq(c.addresses, ",") {
				if text != "" {
					addrs = append(addrs, api.Address{Address: netip.MustParseAddr(text)})
				}
			}
			if got := s(c.pod, addrs); got != c.want {
				t.Errorf("watched %t, %s: %t, want %t", watched, c.name, got, c.want)
			}
		}
	}
	ips.err = errors.New("away")
	if _, err := n.Standing(t.Context()); err == nil {
		t.Error("Standing() without an answer succeeds")
	}
}

// Holder finds the pod of an address of which the agent knows nothing else.
func TestHolder(t *testing.T) {
	owned := fip("10.0.70.5", "u1", thisNode)
	owned.Spec.Owner = &v1alpha1.Owner{Namespace: "shop"}
	bare := fip("10.0.70.5", "u1", thisNode)
	bare.Spec.Owner = nil
	running := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "found", Name: "web-0", UID: "u1"}, Spec: corev1.PodSpec{NodeName: thisNode}}
	for name, c := range map[string]struct {
		ip        *v1alpha1.FloatingIP
		pods      []runtime.Object
		err       error
		namespace string
		lost      bool
	}{
		"held":                       {ip: owned, namespace: "shop"},
		"held, no owner":             {ip: bare, pods: []runtime.Object{running}, namespace: "found"},
		"held by a pod that is gone": {ip: bare, lost: true},
		"on another node":            {ip: fip("10.0.70.5", "u1", "node-2"), lost: true},
		"freed":                      {lost: true},
		"unreachable":                {err: errors.New("dial tcp: i/o timeout")},
	} {
		t.Run(name, func(t *testing.T) {
			ips := &fakeIPs{err: c.err, ips: map[string]*v1alpha1.FloatingIP{}}
			if c.ip != nil {
				ips.ips[c.ip.Name] = c.ip
			}
			n := New(thisNode, podsOf(fake.NewClientset(c.pods...)), ips, podrequest.Reader{})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { n.informer.RunWithContext(ctx); close(ended) }()
			defer func() { cancel(); <-ended }()
			n.WaitForSync(ctx)
			pod, record, err := n.Holder(ctx, netip.MustParseAddr("10.0.70.5"))
			if (err == nil) != (c.namespace != "") || errors.Is(err, ErrNotHolder) != c.lost {
				t.Errorf("Holder() = %v", err)
			}
			if err == nil && (pod.Namespace != c.namespace || pod.UID != "u1" || record.Version != 7) {
				t.Errorf("Holder() = %+v, %+v, want namespace %s and version 7", pod, record, c.namespace)
			}
		})
	}
}

// handler records its calls, and fails at the first.
type handler struct {
	gone     chan api.Pod
	verified chan struct{}
	// suspected is between Suspect and Verify.
	suspected bool
	mu        sync.Mutex
	failed    bool
	came      []string
	changes   atomic.Int32
	readied   []string
	addressed []string
}

func (h *handler) Gone(_ context.Context, pod api.Pod) error {
	h.mu.Lock()
	first := !h.failed
	h.failed = true
	h.mu.Unlock()
	if first {
		return errors.New("not now")
	}
	h.gone <- pod
	return nil
}

func (h *handler) Came(_ context.Context, pod Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.came = append(h.came, pod.UID)
}

func (h *handler) Changed(api.Pod) { h.changes.Add(1) }

func (h *handler) Addressed(pod api.Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.addressed = append(h.addressed, pod.UID)
}

func (h *handler) Readied(pod api.Pod) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.readied = append(h.readied, pod.UID)
}

func (h *handler) Suspect() { h.suspected = true }

// Verify is called every second, too, with nobody suspected.
func (h *handler) Verify(context.Context) error {
	if !h.suspected {
		return nil
	}
	h.suspected = false
	select {
	case h.verified <- struct{}{}:
	default:
	}
	return nil
}

// late is a handler that notes when it is told to verify its suspects, and never can.
type late struct {
	handler
	at []time.Duration
	of time.Time
}

func (l *late) Verify(context.Context) error {
	if l.suspected {
		l.at = append(l.at, time.Since(l.of))
	}
	return errors.New("no answer")
}

// Agents that lose the API at the same moment do not ask at the same moment, and each asks again
// soon.
func TestReconnectsApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var group sync.WaitGroup
		var agents []*late
		for range 100 {
			n, l := &Node{lost: wakeup.New()}, &late{of: time.Now()}
			agents = append(agents, l)
			n.VerifySoon()
			group.Go(func() { n.reconnect(ctx, l) })
		}
		group.Wait()
		for try := range 2 {
			moments := map[time.Duration]int{}
			for _, l := range agents {
				moments[l.at[try].Truncate(50*time.Millisecond)]++
			}
			if len(moments) < 8 {
				t.Errorf("100 agents ask at %v", moments)
			}
		}
		for _, l := range agents {
			if last := l.at[len(l.at)-1]; len(l.at) < 9 || last < 8*time.Second {
				t.Errorf("an agent asks at %v only", l.at)
			}
		}
	})
}

// follow returns a Node that follows a client's pods until the test ends, and the handler that it
// tells.
func follow(t *testing.T) (*fake.Clientset, *Node, *handler) {
	t.Helper()
	client := fake.NewClientset()
	node := New(thisNode, podsOf(client), &fakeIPs{}, podrequest.Reader{})
	h := &handler{gone: make(chan api.Pod, 1), verified: make(chan struct{}, 1)}
	go func() {
		if err := node.Run(t.Context(), h); err != nil {
			t.Error(err)
		}
	}()
	node.WaitForSync(t.Context())
	return client, node, h
}

// It is told once when a pod gets an address that is not its node's.
func TestAddressed(t *testing.T) {
	client, _, h := follow(t)
	ctx := t.Context()
	// The fake tells a watch nothing of before it.
	probes := 0
	netnstest.Eventually(t, func() error {
		probe := podObject(fmt.Sprintf("probe%d", probes))
		probe.Name = string(probe.UID)
		if _, err := client.CoreV1().Pods(probe.Namespace).Create(ctx, probe, metav1.CreateOptions{}); err != nil {
			return err
		}
		probes++
		h.mu.Lock()
		defer h.mu.Unlock()
		if len(h.came) == 0 {
			return errors.New("the watch has not begun")
		}
		return nil
	})
	for i, host := range []bool{true, false} {
		pod := podObject(fmt.Sprintf("u%d", i))
		pod.Name, pod.Spec.HostNetwork = fmt.Sprintf("pod-%d", i), host
		pods := client.CoreV1().Pods(pod.Namespace)
		if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		for _, ips := range [][]corev1.PodIP{{{IP: "10.0.70.5"}}, {{IP: "10.0.70.5"}, {IP: "2001:db8::5"}}} {
			pod.Status.PodIPs = ips
			if _, err := pods.Update(ctx, pod, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	netnstest.Eventually(t, func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if !slices.Equal(h.addressed, []string{"u1"}) {
			return fmt.Errorf("told of the addresses of %v, want of u1's once", h.addressed)
		}
		return nil
	})
}

// It is told when a pod becomes Ready and when it is not any more, and not of other changes of its
// conditions.
func TestReadied(t *testing.T) {
	client, node, h := follow(t)
	ctx := t.Context()
	pod := podObject("u1")
	identity := api.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: "u1"}
	pods := client.CoreV1().Pods(pod.Namespace)
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, known := node.IsReady(api.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: "u0"}); known {
		t.Error("another pod of the name is known")
	}
	var want []string
	for _, step := range []struct {
		conditions []corev1.PodCondition
		told, is   bool
	}{
		{[]corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}, false, false},
		{[]corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}, true, true},
		{[]corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}, {Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}, false, true},
		{[]corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionUnknown}}, true, false},
	} {
		pod.Status.Conditions = step.conditions
		if step.told {
			want = append(want, "u1")
		}
		if _, err := pods.Update(ctx, pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		netnstest.Eventually(t, func() error {
			ready, known := node.IsReady(identity)
			h.mu.Lock()
			defer h.mu.Unlock()
			if ready != step.is || !known || !slices.Equal(h.readied, want) {
				return fmt.Errorf("%v: ready %t, known %t, told of %v, want %t and %v", step.conditions, ready, known, h.readied, step.is, want)
			}
			return nil
		})
	}
}

// A pod that comes, and a change of its annotations, are told; other changes are not.
func TestChanged(t *testing.T) {
	client, node, h := follow(t)
	ctx := t.Context()
	pod := podObject("u1")
	identity := api.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: "u1"}
	if _, known := node.Annotations(identity); known {
		t.Error("a pod that was not seen is known")
	}
	pods := client.CoreV1().Pods(pod.Namespace)
	var want int32
	for _, step := range []func() error{
		func() error { _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); return err },
		func() error {
			pod.Labels = map[string]string{"a": "b"}
			_, err := pods.Update(ctx, pod, metav1.UpdateOptions{})
			want--
			return err
		},
		func() error {
			pod.Annotations = map[string]string{"kubernetes.io/egress-bandwidth": "1M"}
			_, err := pods.Update(ctx, pod, metav1.UpdateOptions{})
			return err
		},
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
		want++
		netnstest.Eventually(t, func() error {
			annotations, known := node.Annotations(identity)
			if got := h.changes.Load(); got != want || !known || !maps.Equal(annotations, pod.Annotations) {
				return fmt.Errorf("told %d changes, want %d; annotations %v, %v", got, want, annotations, known)
			}
			return nil
		})
	}
	if _, known := node.Annotations(api.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: "u0"}); known {
		t.Error("another pod of the name is known")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.Equal(h.came, []string{"u1"}) {
		t.Errorf("told that %v came, want u1 once", h.came)
	}
}

func TestRun(t *testing.T) {
	cases := map[string]func(client *fake.Clientset, pod *corev1.Pod) error{
		"deleted": func(c *fake.Clientset, pod *corev1.Pod) error {
			return c.CoreV1().Pods("default").Delete(context.Background(), pod.Name, metav1.DeleteOptions{})
		},
		"replaced": func(c *fake.Clientset, pod *corev1.Pod) error {
			next := pod.DeepCopy()
			next.UID = "u2"
			return c.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), next, "default")
		},
		"finished": func(c *fake.Clientset, pod *corev1.Pod) error {
			next := pod.DeepCopy()
			next.Status.Phase = corev1.PodSucceeded
			return c.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), next, "default")
		},
	}
	for name, lose := range cases {
		t.Run(name, func(t *testing.T) {
			pod := podObject("u1")
			client := fake.NewClientset(pod)
			n := New(thisNode, podsOf(client), &fakeIPs{}, podrequest.Reader{})
			h := &handler{gone: make(chan api.Pod), verified: make(chan struct{}, 1)}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- n.Run(ctx, h) }()
			<-h.verified
			if !n.WaitForSync(ctx) {
				t.Fatal("the watch does not start")
			}
			if alive, err := n.Alive(ctx, api.Pod{Namespace: "default", Name: "web-0", UID: "u1"}); !alive || err != nil {
				t.Errorf("Alive() = %v, %v", alive, err)
			}
			if err := lose(client, pod); err != nil {
				t.Fatal(err)
			}
			want := api.Pod{Namespace: "default", Name: "web-0", UID: "u1"}
			if got := <-h.gone; got != want {
				t.Errorf("gone: %s", cmp.Diff(want, got))
			}
			if alive, err := n.Alive(ctx, want); alive || err != nil {
				t.Errorf("Alive() = %v, %v", alive, err)
			}
			n.VerifySoon()
			<-h.verified
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}

func FuzzToAddress(f *testing.F) {
	f.Add("10.0.70.5", "10.0.70.5", "10.0.70.0/24", "10.0.70.1", int32(7))
	f.Add("::1", "0000", "", "", int32(-1))
	f.Fuzz(func(t *testing.T, name, address, subnet, gateway string, vlan int32) {
		ip := &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: name}}
		ip.Spec.Address = address
		ip.Spec.Network = &v1alpha1.Network{Subnet: subnet, Gateway: gateway, VLAN: vlan}
		got, err := toAddress(ip)
		if err == nil && (!got.Address.IsValid() || !got.Subnet.IsValid() || v1alpha1.NameOf(got.Address) != name) {
			t.Errorf("toAddress() = %+v", got)
		}
	})
}

// The agent reads each record that the API server admits: it gives an address to the pod that the
// record names, on its node, alone.
func TestCombinations(t *testing.T) {
	for ip, refused := range ipamtest.FloatingIPs(time.Now()) {
		if refused != nil {
			continue
		}
		_, err := toAddress(ip)
		if (err == nil) != (ip.Spec.Network != nil) {
			t.Fatalf("%+v: %v", ip.Spec, err)
		}
		recordOf(ip, "")
		if err := holds(ip, "pod", "node1"); (err == nil) != (ip.Spec.Pod != nil && ip.Spec.Node == "node1") {
			t.Fatalf("%+v: %v", ip.Spec, err)
		}
		if holds(ip, "other", "node1") == nil {
			t.Fatalf("%+v is any pod's", ip.Spec)
		}
	}
}
