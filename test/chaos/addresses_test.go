// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/chaos/judge"
)

// A shape is the lists of the addresses annotation, by pool; "" is an address that
// no list says. It stays while the lists change, so that a workload's pods have as
// many addresses of each family as before.
type shape []string

// shapes that a workload may have. Where a pod has several addresses, all nodes
// reach all of them: whether some other node is one that has them all is not for
// this test to find out.
func (d *driver) shape() shape {
	one := pick(d.random, []string{"any", "any", "even", "odd", "scarce", d.cloud(), d.cloud()})
	return pick(d.random, []shape{{one}, {one}, {one}, {"any", "six"}, {"any", ""}, {"any", "any", "six"}})
}

// lists draws an annotation of a shape for some pods. It may be too short for
// them, and others have some of the addresses.
func (d *driver) lists(shape shape, replicas int) string {
	var lists []string
	for _, name := range shape {
		if name != "" {
			lists = append(lists, d.list(name, replicas))
		}
	}
	return strings.Join(lists, ";")
}

func (d *driver) list(name string, replicas int) string {
	var p *pool
	for _, other := range d.pools {
		if other.name == name {
			p = other
		}
	}
	first, _, _ := strings.Cut(p.spec.Ranges[0], "-")
	_, last, _ := strings.Cut(p.spec.Ranges[1], "-")
	most := netip.MustParseAddr(last)
	from := netip.MustParseAddr(first)
	for range d.random.IntN(60) {
		from = from.Next()
	}
	to := from
	for range d.random.IntN(2*replicas + 2) {
		to = to.Next()
	}
	from, to = least(from, most), least(to, most)
	switch d.random.IntN(4) {
	case 0:
		return from.String()
	case 1:
		bits := 28
		if from.Is6() {
			bits = 124
		}
		return fmt.Sprintf("%s,%s", to, netip.PrefixFrom(from, bits).Masked())
	}
	return fmt.Sprintf("%s-%s", from, to)
}

func least(a, b netip.Addr) netip.Addr {
	if a.Less(b) {
		return a
	}
	return b
}

// readdress changes the lists of a workload while it runs, or of a pod, for which
// it comes too late.
func (d *driver) readdress() *action {
	var listed []*workload
	for _, wl := range d.live() {
		if wl.shape != nil {
			listed = append(listed, wl)
		}
	}
	if len(listed) == 0 {
		return nil
	}
	wl := pick(d.random, listed)
	wl.version++
	lists := d.lists(wl.shape, wl.replicas)
	wl.annotations[v1alpha1.AnnotationAddresses] = lists
	version := wl.version
	return &action{fmt.Sprintf("readdress %s, version %d: %s", wl, version, lists), func(*rand.Rand) error {
		annotations := map[string]any{"metadata": map[string]any{"annotations": map[string]string{
			v1alpha1.AnnotationAddresses: lists, "chaos/version": fmt.Sprint(version),
		}}}
		if wl.kind == barePod {
			return d.readdressPod(wl, annotations)
		}
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{"template": annotations}})
		if err != nil {
			return err
		}
		return d.patch(wl, string(patch))
	}}
}

// readdressPod leaves a pod alone that is not yet bound: it may be bound with what
// it said a moment ago.
func (d *driver) readdressPod(wl *workload, annotations map[string]any) error {
	pod, err := d.w.Kubelets.Pods.Pods(wl.namespace).Get(wl.name)
	if err != nil || pod.Spec.NodeName == "" {
		return err
	}
	annotations["metadata"].(map[string]any)["uid"] = pod.UID
	patch, err := json.Marshal(annotations)
	if err != nil {
		return err
	}
	_, err = d.w.Kube.CoreV1().Pods(wl.namespace).Patch(d.w.Ctx, wl.name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// partsOf reads which n addresses annotations ask for. It knows the annotations that
// this test writes.
func partsOf(annotations map[string]string, n int) []judge.Part {
	parts := make([]judge.Part, n)
	families := strings.Split(annotations[v1alpha1.AnnotationFamilies], ",")
	for i := range parts {
		parts[i].Family = v1alpha1.IPFamily(families[i%len(families)])
	}
	text := annotations[v1alpha1.AnnotationAddresses]
	if text == "" {
		return parts
	}
	for i, list := range strings.Split(text, ";") {
		parts[i] = judge.Part{Ranges: strings.Split(list, ",")}
	}
	return parts
}

// demand is how many addresses of each family parts are.
func demand(parts []judge.Part) (four, six int) {
	for i := range parts {
		if parts[i].Is6() {
			six++
		} else {
			four++
		}
	}
	return four, six
}
