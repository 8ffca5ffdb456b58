// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
	"github.com/berth-dev/berth/ipam/preallocation"
	"github.com/berth-dev/berth/ipam/store"
	"github.com/berth-dev/berth/ipam/view"
)

// EventAddressInUse (Warning on Service): a Service of another implementation has an address of an IPPool with
// excludeServices that Berth has given to somebody else.
// Do: give one of the two another address, and leave the others' addresses out of the pool, see docs/how-to/services.md#beside-metallb.
const EventAddressInUse = "AddressInUse"

// foreign is the namespace of the keys of addresses that Services of other implementations have. No namespace has a colon in
// its name.
const foreign = "foreign:"

func foreignKey(address string) preallocation.Key {
	return preallocation.Key{Kind: preallocation.KindService, Namespace: foreign, Name: address}
}

// isForeignRecord returns whether a record takes the address of another implementation's Service out of circulation.
func isForeignRecord(ip *v1alpha1.FloatingIP) bool {
	return ip.Spec.Reserved && ip.Spec.Owner.IsService()
}

// foreignKeysOf returns the keys of the addresses that a Service has from another implementation.
func foreignKeysOf(service *v1.Service) (keys []preallocation.Key) {
	if isForeign(service) {
		addresses, _ := ingressIndex(service) // it returns no error
		for _, address := range addresses {
			keys = append(keys, foreignKey(address))
		}
	}
	return keys
}

// foreignKeys returns the keys of all addresses of Services of other implementations, and of the ones that are reserved for
// some.
func (c *controller) foreignKeys() (keys []preallocation.Key) {
	for _, object := range c.services.List() {
		keys = append(keys, foreignKeysOf(object.(*v1.Service))...)
	}
	for _, ip := range view.Indexed[*v1alpha1.FloatingIP](c.ips, byGroup, foreign) {
		keys = append(keys, foreignKey(ip.Spec.Address))
	}
	return keys
}

// exclude reserves an address of a pool with excludeServices while a Service has it from another implementation.
func (c *controller) exclude(ctx context.Context, address string) error {
	addr, err := netip.ParseAddr(address)
	if err != nil {
		return nil //nolint:nilerr // no pool has it
	}
	users := slices.DeleteFunc(view.Indexed[*v1.Service](c.services, byIngress, address), func(s *v1.Service) bool { return !isForeign(s) || s.DeletionTimestamp != nil })
	slices.SortFunc(users, order)
	ip := c.loop.FloatingIP(address)
	pool := c.loop.Pools().PoolOf(addr)
	wants := len(users) > 0 && pool != nil && pool.ExcludeServices
	switch {
	case wants && ip == nil:
		return c.reserve(ctx, addr, pool, users[0])
	case wants && !isForeignRecord(ip):
		if !ip.Spec.Reserved && ip.Spec.Owner != nil {
			c.tell(c.Of(foreignKey(address), ""), users[0], EventAddressInUse, fmt.Sprintf("It has %s, which IPPool %s gave to %s.", address, pool.Name, ip.Spec.Owner.Text()))
		}
	case !wants && ip != nil && isForeignRecord(ip):
		if err := c.store.Delete(ctx, ip); err != nil {
			return fmt.Errorf("free %s, which no Service of another implementation has: %w", address, err)
		}
	}
	if !wants {
		c.Forget(foreignKey(address))
	}
	return nil
}

func (c *controller) reserve(ctx context.Context, addr netip.Addr, pool *pools.Pool, user *v1.Service) error {
	class := "no class"
	if user.Spec.LoadBalancerClass != nil {
		class = "class " + *user.Spec.LoadBalancerClass
	}
	_, err := c.store.Create(ctx, &v1alpha1.FloatingIP{
		ObjectMeta: metav1.ObjectMeta{
			Name:        v1alpha1.NameOf(addr),
			Annotations: map[string]string{v1alpha1.AnnotationReason: fmt.Sprintf("Service %s of %s has it", klog.KObj(user), class)},
		},
		Spec: v1alpha1.FloatingIPSpec{
			Address: addr.String(), Pool: pool.Name, Reserved: true,
			Owner: &v1alpha1.Owner{APIVersion: "v1", Kind: preallocation.KindService, Namespace: user.Namespace, Name: user.Name, UID: user.UID},
		},
	})
	if errors.Is(err, store.ErrTaken) {
		return nil // Its event brings it back here.
	}
	if err != nil {
		return fmt.Errorf("reserve %s, which Service %s has: %w", addr, klog.KObj(user), err)
	}
	return nil
}

func isForeignKey(key preallocation.Key) bool { return key.Namespace == foreign }
