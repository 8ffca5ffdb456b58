// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// pool is one that is there at the end of every round, whatever happened to it.
type pool struct {
	name string
	spec v1alpha1.IPPoolSpec // with two ranges
}

// newPool returns a pool of 10.net.0.0/16 with n addresses.
func newPool(name string, net, n int, nodeSubnets ...string) *pool {
	first := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(net), byte(i >> 8), byte(i)}) }
	half := 16 + n/2
	return &pool{name, v1alpha1.IPPoolSpec{
		Subnet: fmt.Sprintf("10.%d.0.0/16", net), Gateway: first(1).String(), NodeSubnets: nodeSubnets, Cooldown: &metav1.Duration{},
		Ranges: []string{fmt.Sprintf("%s-%s", first(16), first(half-1)), fmt.Sprintf("%s-%s", first(half), first(16+n-1))},
	}}
}

// newPool6 returns a pool of IPv6 with n addresses.
func newPool6(name string, n int) *pool {
	first := func(i int) string { return fmt.Sprintf("fd00:70::1:%x", i) }
	return &pool{name, v1alpha1.IPPoolSpec{
		Subnet: "fd00:70::/64", Gateway: "fd00:70::1", Cooldown: &metav1.Duration{},
		Ranges: []string{fmt.Sprintf("%s-%s", first(1), first(n/2)), fmt.Sprintf("%s-%s", first(n/2+1), first(n))},
	}}
}

// makePools makes the pools: one for all nodes, one for each of two node subnets,
// a small one, one of IPv6, and one of the external assigner.
func (d *driver) makePools() error {
	n := d.w.settings.pods
	cloud := newPool("cloud", 5, n)
	cloud.spec.ExternalAssigner = true
	d.pools = []*pool{
		newPool("any", 1, 4*n),
		newPool("even", 2, n, "10.0.60.0/24"),
		newPool("odd", 3, n, "10.0.61.0/24"),
		newPool("scarce", 4, 6),
		newPool6("six", 4*n),
		cloud,
	}
	return d.mendPools()
}

// mendPools makes all pools what they were first, and deletes all others.
func (d *driver) mendPools() error {
	list, err := d.w.Berth.IPPools.List(d.w.Ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list pools: %w", err)
	}
	there := map[string]bool{}
	for i := range list.Items {
		there[list.Items[i].Name] = true
	}
	for _, p := range d.pools {
		if there[p.name] {
			err = d.patchPool(p.name, ranges(p.spec.Ranges...), map[string]any{"exclude": nil, "disabled": nil, "cooldown": nil})
		} else {
			err = d.createPool(p.name, p.spec)
		}
		if err != nil {
			return fmt.Errorf("fix pool %s: %w", p.name, err)
		}
		delete(there, p.name)
	}
	for name := range there {
		if err := d.w.Berth.IPPools.Delete(d.w.Ctx, name, metav1.DeleteOptions{}); err != nil {
			return fmt.Errorf("delete pool %s: %w", name, err)
		}
	}
	return nil
}

func ranges(ranges ...string) map[string]any { return map[string]any{"ranges": ranges} }

func (d *driver) createPool(name string, spec v1alpha1.IPPoolSpec) error {
	_, err := d.w.Berth.IPPools.Create(d.w.Ctx, &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labelsOf(&spec)}, Spec: spec}, metav1.CreateOptions{})
	return err
}

func labelsOf(spec *v1alpha1.IPPoolSpec) map[string]string {
	if strings.Contains(spec.Subnet, ":") || spec.ExternalAssigner {
		return nil
	}
	key, value, _ := strings.Cut(tierFour, "=")
	return map[string]string{key: value}
}

func (d *driver) patchPool(name string, fields ...map[string]any) error {
	spec := map[string]any{}
	for _, some := range fields {
		maps.Copy(spec, some)
	}
	patch, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		return err
	}
	_, err = d.w.Berth.IPPools.Patch(d.w.Ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// poolEdits are the edits of a pool that the driver may draw.
var poolEdits = []string{"shrink", "shrink", "grow", "exclude", "disable", "enable", "delete", "create", "overlap", "cool", "cool"}

func (d *driver) editPool() *action {
	p := pick(d.random, d.pools)
	edit := pick(d.random, poolEdits)
	half := d.random.IntN(2)
	seconds := 1 + d.random.IntN(5)
	d.serial++
	overlap := fmt.Sprintf("over-%s-%d", p.name, d.serial)
	return &action{fmt.Sprintf("%s pool %s (half %d, %s, %d s)", edit, p.name, half, overlap, seconds), func(*rand.Rand) error {
		switch edit {
		case "shrink":
			return d.patchPool(p.name, ranges(p.spec.Ranges[half]))
		case "grow":
			return d.patchPool(p.name, ranges(p.spec.Ranges...))
		case "exclude":
			first, _, _ := strings.Cut(p.spec.Ranges[0], "-")
			bits := 27 - half
			if strings.Contains(first, ":") {
				bits = 122 + half
			}
			prefix, err := netip.MustParseAddr(first).Prefix(bits)
			if err != nil {
				return err
			}
			return d.patchPool(p.name, map[string]any{"exclude": []string{prefix.String()}})
		case "cool":
			return d.patchPool(p.name, map[string]any{"cooldown": fmt.Sprintf("%ds", seconds)})
		case "disable":
			return d.patchPool(p.name, map[string]any{"disabled": true})
		case "enable":
			return d.patchPool(p.name, map[string]any{"disabled": nil})
		case "delete":
			return d.w.Berth.IPPools.Delete(d.w.Ctx, p.name, metav1.DeleteOptions{})
		case "create":
			return d.createPool(p.name, p.spec)
		}
		spec := *p.spec.DeepCopy()
		spec.Ranges = spec.Ranges[half : half+1]
		return d.createPool(overlap, spec)
	}}
}

// reserve takes an address out of circulation.
func (d *driver) reserve() *action {
	p := pick(d.random, d.pools[:4]) // the pools of IPv4
	addr := netip.MustParsePrefix(p.spec.Subnet).Addr().As4()
	addr[3] = byte(16 + d.random.IntN(6))
	name := netip.AddrFrom4(addr).String()
	if !slices.Contains(d.reserved, name) {
		d.reserved = append(d.reserved, name)
	}
	return &action{"reserve " + name, func(*rand.Rand) error {
		_, err := d.w.Berth.FloatingIPs.Create(d.w.Ctx, &v1alpha1.FloatingIP{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       v1alpha1.FloatingIPSpec{Address: name, Pool: p.name, Reserved: true},
		}, metav1.CreateOptions{})
		return err
	}}
}

func (d *driver) unreserve() *action {
	if len(d.reserved) == 0 {
		return nil
	}
	name := pick(d.random, d.reserved)
	return &action{"unreserve " + name, func(*rand.Rand) error {
		ip, err := d.w.Berth.FloatingIPs.Get(d.w.Ctx, name, metav1.GetOptions{})
		if err != nil || !ip.Spec.Reserved {
			return err
		}
		return d.free(ip)
	}}
}

// freeNever frees addresses of policy Never by hand.
func (d *driver) freeNever() *action {
	return &action{"free some addresses that policy Never keeps", func(random *rand.Rand) error {
		return d.freeSome(func(ip *v1alpha1.FloatingIP) bool {
			return ip.Spec.ReleasePolicy == v1alpha1.ReleaseNever && ip.Spec.Pod == nil && !ip.Spec.ExternallyAssigned && random.IntN(4) == 0
		})
	}}
}

// freeSome frees addresses as an administrator.
func (d *driver) freeSome(which func(*v1alpha1.FloatingIP) bool) error {
	list, err := d.w.Berth.FloatingIPs.List(d.w.Ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list floating IPs: %w", err)
	}
	for i := range list.Items {
		if ip := &list.Items[i]; which(ip) {
			if err := d.free(ip); err != nil && !expected(err) {
				return err
			}
		}
	}
	return nil
}

func (d *driver) free(ip *v1alpha1.FloatingIP) error {
	err := d.w.Berth.FloatingIPs.Delete(d.w.Ctx, ip.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &ip.UID, ResourceVersion: &ip.ResourceVersion},
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsForbidden(err) {
		return nil // somebody has it now
	}
	if err != nil {
		return fmt.Errorf("free %s: %w", ip.Name, err)
	}
	d.w.say("  freed %s by hand", ip.Name)
	d.w.recorder.pardon(string(ip.UID))
	return nil
}
