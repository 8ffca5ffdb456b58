// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
	"github.com/berth-dev/berth/ipam/preallocation"
	"github.com/berth-dev/berth/ipam/store"
	"github.com/berth-dev/berth/ipam/view"
)

// Reasons of events about Services of other implementations that have addresses of an IPPool with
// excludeServices.
const (
	// EventAddressInUse (Warning on Service): a Service of another implementation has an address of an
	// IPPool with excludeServices that Berth has given to somebody else. Do: give one of the two
	// another address, and leave the others' addresses out of the pool, see
	// docs/how-to/services.md#beside-metallb.
	EventAddressInUse = "AddressInUse"
	// EventAddressNotExcluded (Warning on Service): a Service of another implementation has an address
	// of an IPPool with excludeServices of which its namespace may have none, or no more. Berth may
	// give it to somebody else. Do: as the note says, give the Service an address of no pool, or
	// change the pool, see docs/how-to/services.md#beside-metallb.
	EventAddressNotExcluded = "AddressNotExcluded"
)

// foreign is the name in the keys of the addresses that the Services of a namespace have from other
// implementations. No Service has a colon in its name.
const foreign = "foreign:"

func foreignKey(namespace string) preallocation.Key {
	return preallocation.Key{Kind: preallocation.KindService, Namespace: namespace, Name: foreign}
}

// isForeignRecord returns whether a record takes the address of another implementation's Service
// out of circulation.
func isForeignRecord(ip *v1alpha1.FloatingIP) bool {
	return ip.Spec.Reserved && ip.Spec.Owner.IsService()
}

// exclusions are the addresses of pools with excludeServices that are reserved for Services of a
// namespace, and what is told of others.
type exclusions struct {
	of      map[netip.Addr]*v1.Service
	refused map[*v1.Service]string
}

// excluded returns which addresses are reserved for the Services of a namespace: of each one of a
// family, of pools that admit the namespace, and of a pool no more than maxPerNamespace. The oldest
// Services come first. Pure.
func excluded(all []*v1.Service, namespace labels.Set, snapshot *pools.Snapshot) exclusions {
	e := exclusions{map[netip.Addr]*v1.Service{}, map[*v1.Service]string{}}
	has := map[*pools.Pool]uint64{}
	for _, service := range slices.SortedFunc(slices.Values(all), order) {
		if !isForeign(service) || service.DeletionTimestamp != nil {
			continue
		}
		with := map[bool]string{}
		addresses, _ := ingressIndex(service) // it returns no error
		for _, address := range addresses {
			addr := netip.MustParseAddr(address)
			pool := snapshot.PoolOf(addr)
			if pool == nil || !pool.ExcludeServices || e.of[addr] != nil {
				continue
			}
			var why string
			switch other := with[addr.Is4()]; {
			case !pool.AdmitsNamespace(namespace):
				why = "the pool does not admit namespace " + service.Namespace
			case other != "":
				why = "a Service can have one address of a family, and it has " + other
			case pool.MaxPerNamespace > 0 && has[pool] >= pool.MaxPerNamespace:
				why = fmt.Sprintf("Services of namespace %s have %d of the pool already (maxPerNamespace)", service.Namespace, has[pool])
			default:
				with[addr.Is4()], e.of[addr] = address, service
				has[pool]++
				continue
			}
			if e.refused[service] == "" {
				e.refused[service] = fmt.Sprintf("It has %s, which IPPool %s may give to somebody else: %s.", address, pool.Name, why)
			}
		}
	}
	return e
}

// exclude reserves the addresses that the Services of a namespace have from other implementations,
// as long as they have them.
func (c *controller) exclude(ctx context.Context, key preallocation.Key) error {
	services := view.Indexed[*v1.Service](c.services, cache.NamespaceIndex, key.Namespace)
	var labelsOf labels.Set
	if len(services) > 0 {
		namespace, err := c.loop.Namespace(key.Namespace)
		if err != nil {
			return err
		}
		labelsOf = namespace.Labels
	}
	snapshot := c.loop.Pools()
	wanted := excluded(services, labelsOf, snapshot)
	for _, ip := range view.Indexed[*v1alpha1.FloatingIP](c.ips, byGroup, key.String()) {
		if wanted.of[ip.Addr()] == nil {
			if err := c.store.Delete(ctx, ip); err != nil {
				return fmt.Errorf("free %s, which is excluded for no Service of another implementation: %w", ip.Name, err)
			}
		}
	}
	inUse := map[*v1.Service]string{}
	for addr, service := range wanted.of {
		pool := snapshot.PoolOf(addr)
		switch ip := c.loop.FloatingIP(addr.String()); {
		case ip == nil:
			if err := c.reserve(ctx, addr, pool, service); err != nil {
				return err
			}
		case !ip.Spec.Reserved && ip.Spec.Owner != nil:
			inUse[service] = fmt.Sprintf("It has %s, which IPPool %s gave to %s.", addr, pool.Name, ip.Spec.Owner.Text())
		}
	}
	m := c.Of(key, "")
	for _, service := range services {
		for reason, notes := range map[string]map[*v1.Service]string{EventAddressInUse: inUse, EventAddressNotExcluded: wanted.refused} {
			c.tell(m, service, reason, notes[service])
		}
	}
	if len(m.State.told) == 0 {
		c.Forget(key)
	}
	return nil
}

func (c *controller) reserve(ctx context.Context, addr netip.Addr, pool *pools.Pool, user *v1.Service) error {
	class := "no class"
	if user.Spec.LoadBalancerClass != nil {
		class = "class " + *user.Spec.LoadBalancerClass
	}
	err := c.store.Reserve(ctx, addr, pool.Name, v1alpha1.Owner{APIVersion: "v1", Kind: preallocation.KindService, Namespace: user.Namespace, Name: user.Name, UID: user.UID},
		fmt.Sprintf("Service %s of %s has it", klog.KObj(user), class))
	if errors.Is(err, store.ErrTaken) {
		return nil // Its event brings it back here.
	}
	if err != nil {
		return fmt.Errorf("reserve %s, which Service %s has: %w", addr, klog.KObj(user), err)
	}
	return nil
}

func isForeignKey(key preallocation.Key) bool { return key.Name == foreign }
