// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// fill sets every field below a value to something else than its zero value.
func fill(v reflect.Value, n *int64) {
	*n++
	switch v.Interface().(type) {
	case metav1.Time:
		v.Set(reflect.ValueOf(metav1.Unix(*n*1e6, 0)))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Struct:
		for _, field := range v.Fields() {
			fill(field, n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			fill(v.Index(i), n)
		}
	case reflect.String:
		v.SetString(fmt.Sprint("text", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32, reflect.Int64:
		v.SetInt(-*n)
	default:
		panic(fmt.Sprint("cannot fill ", v.Type()))
	}
}

// kept is what a ledger keeps of an object's metadata.
func kept(meta *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: meta.Name, UID: meta.UID, ResourceVersion: meta.ResourceVersion, Generation: meta.Generation,
		CreationTimestamp: meta.CreationTimestamp, DeletionTimestamp: meta.DeletionTimestamp,
	}
}

const uid = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"

// floatingIPsOfAllKinds has FloatingIPs with all fields set, one, none, and those that pods have.
func floatingIPsOfAllKinds() []*v1alpha1.FloatingIP {
	full := &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{
		Name: "full", UID: "odd", ResourceVersion: "12", Generation: 3, CreationTimestamp: metav1.Unix(7, 0), DeletionTimestamp: new(metav1.Unix(8, 0)),
	}}
	n := int64(0)
	fill(reflect.ValueOf(&full.Spec).Elem(), &n)
	fill(reflect.ValueOf(&full.Status).Elem(), &n)
	bare := &v1alpha1.FloatingIP{
		ObjectMeta: metav1.ObjectMeta{Name: "10.0.0.1", UID: uid, ResourceVersion: "123456"},
		Spec: v1alpha1.FloatingIPSpec{
			Address: "10.0.0.1", Pool: "web", Node: "node1", ReleasePolicy: v1alpha1.ReleasePodDeleted,
			Owner: &v1alpha1.Owner{APIVersion: "v1", Kind: "Pod", Namespace: "shop", Name: "cart", PodName: "cart", UID: "11111111-2222-3333-4444-555555555555"},
			Pod:   &v1alpha1.PodReference{Name: "cart", UID: "11111111-2222-3333-4444-555555555555"},
		},
	}
	ips := []*v1alpha1.FloatingIP{full, bare, {ObjectMeta: metav1.ObjectMeta{Name: "none"}}}
	for field := range reflect.TypeFor[v1alpha1.FloatingIPSpec]().Fields() {
		one := &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: field.Name}}
		fill(reflect.ValueOf(&one.Spec).Elem().FieldByIndex(field.Index), &n)
		ips = append(ips, one)
	}
	return ips
}

// No field of a FloatingIP is lost, nor will one be that is added to the API.
func TestFloatingIPs(t *testing.T) {
	l := NewFloatingIPs(nil)
	for _, ip := range floatingIPsOfAllKinds() {
		before := ip.DeepCopy()
		if err := l.Add(ip); err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(before, ip); diff != "" {
			t.Errorf("%s was changed when it was added:\n%s", ip.Name, diff)
		}
	}
	for _, ip := range floatingIPsOfAllKinds() {
		object, exists, err := l.GetByKey(ip.Name)
		if err != nil || !exists {
			t.Fatalf("%s: %t, %v", ip.Name, exists, err)
		}
		ip.ObjectMeta = kept(&ip.ObjectMeta)
		if diff := gocmp.Diff(ip, object); diff != "" {
			t.Errorf("%s is kept as another (- is right):\n%s", ip.Name, diff)
		}
	}
}

func podsOfAllKinds() []*v1.Pod {
	asks := func(n string) []v1.Container {
		return []v1.Container{{Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1alpha1.ResourceIP: resource.MustParse(n)}}}}
	}
	return []*v1.Pod{
		{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: "cart", UID: uid, ResourceVersion: "7", Annotations: map[string]string{"a": "10.0.0.1", "b": ""},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "cart", UID: "set", Controller: new(true)}},
			},
			Spec:   v1.PodSpec{NodeName: "node1", HostNetwork: true, Containers: asks("2")},
			Status: v1.PodStatus{Phase: v1.PodRunning, PodIPs: []v1.PodIP{{IP: "10.0.0.1"}, {IP: "2001:db8::1"}}},
		},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "one"}, Spec: v1.PodSpec{Containers: asks("1")}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "none"}},
	}
}

func TestPods(t *testing.T) {
	l := NewPods(nil, "a", "b")
	for _, pod := range podsOfAllKinds() {
		pod.Labels, pod.Annotations = map[string]string{"app": "cart"}, addTo(pod.Annotations, "other", "x")
		pod.OwnerReferences = append(pod.OwnerReferences, metav1.OwnerReference{Kind: "Other", Name: "no controller"})
		if err := l.Add(pod); err != nil {
			t.Fatal(err)
		}
	}
	for _, pod := range podsOfAllKinds() {
		object, _, _ := l.GetByKey("shop/" + pod.Name)
		if diff := gocmp.Diff(pod, object); diff != "" {
			t.Errorf("%s is kept as another (- is right):\n%s", pod.Name, diff)
		}
	}
}

func addTo(m map[string]string, key, value string) map[string]string {
	if m == nil {
		m = map[string]string{}
	}
	m[key] = value
	return m
}

func TestOtherKinds(t *testing.T) {
	for _, l := range []*Ledger{NewFloatingIPs(nil), NewPods(nil)} {
		if err := l.Add(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}); err == nil || !strings.Contains(err.Error(), "node1") || l.Len() != 0 {
			t.Errorf("a node was added: %v, %d objects", err, l.Len())
		}
	}
}

func TestUIDs(t *testing.T) {
	for text, want := range map[string]bool{
		uid: true, "": false, "web-0": false, strings.ToUpper(uid): false, strings.ReplaceAll(uid, "-", "0"): false,
		uid[1:] + "-": false, uid[1:] + "g": false, uid + "0": false, string(v1alpha1.NilUID): true,
	} {
		packed, ok := parseUID(text)
		if ok != want {
			t.Errorf("%q is a UID: %t", text, ok)
		}
		if got := formatUID(string(packed[:])); ok && got != text {
			t.Errorf("%q is read as %q", text, got)
		}
	}
}

func sortedNames(objects []any) []string {
	var names []string
	for _, object := range objects {
		ip := object.(*v1alpha1.FloatingIP)
		names = append(names, ip.Name+" of "+ip.Spec.Pool+ip.ResourceVersion)
	}
	slices.Sort(names)
	return names
}

// A Ledger is a cache.Indexer to who reads it.
func TestAsIndexer(t *testing.T) {
	by := cache.Indexers{
		"pool": func(object any) ([]string, error) {
			if pool := object.(*v1alpha1.FloatingIP).Spec.Pool; pool != "" {
				return []string{pool}, nil
			}
			return nil, nil
		},
		"digits": func(object any) ([]string, error) {
			return strings.Split(object.(*v1alpha1.FloatingIP).ResourceVersion, ""), nil
		},
	}
	random := rand.New(rand.NewPCG(1, 2))
	l, model := NewFloatingIPs(by), cache.NewIndexer(cache.MetaNamespaceKeyFunc, by)
	for step := range 5000 {
		ip := &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(random.IntN(60)), ResourceVersion: fmt.Sprint(random.IntN(90) + 10)}}
		ip.Spec.Pool = []string{"", "a", "b", "c"}[random.IntN(4)]
		switch random.IntN(3) {
		case 0:
			if err := cmp.Or(l.Delete(ip), model.Delete(ip)); err != nil {
				t.Fatal(err)
			}
		case 1:
			if err := cmp.Or(l.Update(ip), model.Update(ip)); err != nil {
				t.Fatal(err)
			}
		default:
			if err := cmp.Or(l.Add(ip), model.Add(ip)); err != nil {
				t.Fatal(err)
			}
		}
		if got, want := sortedNames(l.List()), sortedNames(model.List()); !slices.Equal(got, want) || l.Len() != len(want) {
			t.Fatalf("after %d steps it has %d objects %v, want %v", step, l.Len(), got, want)
		}
		for index, values := range map[string][]string{"pool": {"a", "b", "c", "d"}, "digits": {"0", "5", "9"}} {
			for _, value := range values {
				got, err := l.ByIndex(index, value)
				if err != nil {
					t.Fatal(err)
				}
				want, _ := model.ByIndex(index, value)
				if got, want := sortedNames(got), sortedNames(want); !slices.Equal(got, want) {
					t.Fatalf("after %d steps %s %s has %v, want %v", step, index, value, got, want)
				}
			}
		}
		_, got, _ := l.GetByKey(ip.Name)
		if _, want, _ := model.GetByKey(ip.Name); got != want {
			t.Fatalf("after %d steps %s is there: %t, want %t", step, ip.Name, got, want)
		}
	}
	if _, err := l.ByIndex("other", ""); err == nil {
		t.Error("there is an index that was not made")
	}

	var pools []string
	keys := l.Grouped("pool")
	for _, key := range keys {
		object, _, _ := model.GetByKey(key)
		pools = append(pools, object.(*v1alpha1.FloatingIP).Spec.Pool)
	}
	if got := len(slices.Compact(pools)); got != 4 {
		t.Errorf("those of 4 pools are in %d groups", got)
	}
	slices.Sort(keys)
	want := model.ListKeys()
	slices.Sort(want)
	if !slices.Equal(keys, want) {
		t.Errorf("grouped are %v, want %v", keys, want)
	}
}

// With 150,000 addresses and pods each byte counts.
func TestMemory(t *testing.T) {
	const n = 20000
	at := func(i int, kind string) types.UID {
		return types.UID(fmt.Sprintf("%08x-%s-4000-8000-0000%08x", i*2654435761&0xffffffff, kind, i))
	}
	ips := func(l *Ledger) error {
		for i := range n {
			name, address := fmt.Sprintf("cart-6f54c9c8d-%05d", i), fmt.Sprintf("10.0.%d.%d", i>>8, i&255)
			if err := l.Add(&v1alpha1.FloatingIP{
				ObjectMeta: metav1.ObjectMeta{Name: address, UID: at(i, "0001"), ResourceVersion: fmt.Sprint(1000000 + i), Generation: 1, CreationTimestamp: metav1.Now()},
				Spec: v1alpha1.FloatingIPSpec{
					Address: address, Pool: "web", Node: "node1", ReleasePolicy: v1alpha1.ReleasePodDeleted, Network: &v1alpha1.Network{Subnet: "10.0.0.0/16"},
					Owner: &v1alpha1.Owner{APIVersion: "v1", Kind: "Pod", Namespace: "shop", NamespaceUID: uid, Name: name, UID: at(i, "0002"), PodName: name},
					Pod:   &v1alpha1.PodReference{Name: name, UID: at(i, "0002")}, Since: new(metav1.Now()),
				},
			}); err != nil {
				return err
			}
		}
		return nil
	}
	pods := func(l *Ledger) error {
		for i := range n {
			pod := podsOfAllKinds()[0]
			pod.Name, pod.UID, pod.ResourceVersion = fmt.Sprintf("cart-6f54c9c8d-%05d", i), at(i, "0002"), fmt.Sprint(1000000+i)
			pod.OwnerReferences[0].UID = uid
			pod.Status.PodIPs = []v1.PodIP{{IP: fmt.Sprintf("10.0.%d.%d", i>>8, i&255)}}
			pod.Annotations["a"] = pod.Status.PodIPs[0].IP
			if err := l.Add(pod); err != nil {
				return err
			}
		}
		return nil
	}
	for _, test := range []struct {
		name string
		l    *Ledger
		fill func(*Ledger) error
		most uint64
	}{
		{"FloatingIPs", NewFloatingIPs(cache.Indexers{
			"pod": func(object any) ([]string, error) {
				return []string{string(object.(*v1alpha1.FloatingIP).Spec.Pod.UID)}, nil
			},
			"name": func(object any) ([]string, error) {
				return []string{object.(*v1alpha1.FloatingIP).Spec.Owner.Name}, nil
			},
		}), ips, 400},
		{"pods", NewPods(nil, "a"), pods, 250},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := inUse()
			if err := test.fill(test.l); err != nil {
				t.Fatal(err)
			}
			each := (inUse() - before) / n
			t.Logf("%d bytes each", each)
			if each > test.most {
				t.Errorf("each takes %d bytes, want at most %d", each, test.most)
			}
			runtime.KeepAlive(test.l)
		})
	}
}

func inUse() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

func BenchmarkGetByKey(b *testing.B) {
	l := NewFloatingIPs(nil)
	if err := l.Add(floatingIPsOfAllKinds()[1]); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, exists, _ := l.GetByKey("10.0.0.1"); !exists {
			b.Fatal("it is gone")
		}
	}
}
