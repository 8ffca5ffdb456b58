// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
)

const (
	kindClaim = "IPClaim"
	ownerName = "web"
	// listed is how many addresses each list has.
	listed = 64
)

// listedAddress is the i-th address of the lists, in the first rack. No two are neighbours, which
// would be one range.
func listedAddress(i int) netip.Addr { return rackAddress(0, 512+2*i) }

// Prepared is what a case needs on an API server. Safe for concurrent use.
type Prepared struct {
	ips *client.FloatingIPs
	// owner is the identity of the case's owner, of a StatefulSet without the pod's name.
	owner v1alpha1.Owner

	mu    sync.Mutex
	bound int
	free  []string // names of FloatingIPs that are to be deleted
	group errgroup.Group
}

// Prepare makes the objects of a case: its pools, and the addresses that are in use before the
// first pod.
func (c Case) Prepare(ctx context.Context, config *rest.Config, nodes, pods int) (*Prepared, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = QPS, QPS
	berth, err := client.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	if c.Pools != nil {
		if err := each(ctx, c.Pools(nodes), func(ctx context.Context, pool *v1alpha1.IPPool) error {
			_, err := berth.IPPools.Create(ctx, pool, metav1.CreateOptions{})
			return err
		}); err != nil {
			return nil, fmt.Errorf("create pools: %w", err)
		}
	}
	owner, err := c.makeOwner(ctx, config, berth)
	if err != nil {
		return nil, err
	}
	p := &Prepared{ips: berth.FloatingIPs, owner: owner}
	freed := c.freed(nodes, pods)
	for _, ip := range freed {
		p.free = append(p.free, ip.Name)
	}
	inUse := slices.Concat(c.owned(owner, nodes), c.reserved(), freed)
	if err := each(ctx, inUse, func(ctx context.Context, ip *v1alpha1.FloatingIP) error {
		_, err := berth.FloatingIPs.Create(ctx, ip, metav1.CreateOptions{})
		return err
	}); err != nil {
		return nil, fmt.Errorf("create addresses: %w", err)
	}
	return p, nil
}

// makeOwner makes the owner and returns its identity. scheduler_perf runs the garbage collector,
// which would delete the pods of a StatefulSet that there is not.
func (c Case) makeOwner(ctx context.Context, config *rest.Config, berth *client.Client) (owner v1alpha1.Owner, err error) {
	if c.Owner == "" {
		return owner, nil
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return owner, fmt.Errorf("make client: %w", err)
	}
	_, err = kube.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Measured}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return owner, fmt.Errorf("create namespace: %w", err)
	}
	namespace, err := kube.CoreV1().Namespaces().Get(ctx, Measured, metav1.GetOptions{})
	if err != nil {
		return owner, fmt.Errorf("read namespace: %w", err)
	}
	owner = v1alpha1.Owner{APIVersion: "apps/v1", Kind: c.Owner, Namespace: Measured, NamespaceUID: namespace.UID, Name: ownerName}
	if c.Owner != kindClaim {
		app := map[string]string{"app": ownerName}
		set, err := kube.AppsV1().StatefulSets(Measured).Create(ctx, &appsv1.StatefulSet{
			ObjectMeta: metav1.ObjectMeta{Name: ownerName},
			Spec: appsv1.StatefulSetSpec{Replicas: new(int32), Selector: &metav1.LabelSelector{MatchLabels: app}, Template: v1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: app}, Spec: Pod(Others, c.Asks).Spec,
			}},
		}, metav1.CreateOptions{})
		if err != nil {
			return owner, fmt.Errorf("create StatefulSet: %w", err)
		}
		owner.UID = set.UID
		return owner, nil
	}
	claim, err := berth.IPClaims(Measured).Create(ctx, &v1alpha1.IPClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: Measured, Name: ownerName}, Spec: v1alpha1.IPClaimSpec{Size: 10_000},
	}, metav1.CreateOptions{})
	if err != nil {
		return owner, fmt.Errorf("create claim: %w", err)
	}
	owner.APIVersion, owner.UID = v1alpha1.SchemeGroupVersion.String(), claim.UID
	return owner, nil
}

// owned returns the addresses that the owner keeps.
func (c Case) owned(owner v1alpha1.Owner, nodes int) (ips []*v1alpha1.FloatingIP) {
	if c.Owner == "" {
		return nil
	}
	for i := range 2 * nodes {
		if c.Owner != kindClaim {
			owner.PodName = fmt.Sprintf("%s-%d", ownerName, i)
		}
		ip := idle(i%racks(nodes), 512+i/racks(nodes), owner)
		ip.Spec.LastPod = owner.PodName
		ips = append(ips, ip)
	}
	return ips
}

// reserved returns the addresses of the lists, which no pod gets.
func (c Case) reserved() (ips []*v1alpha1.FloatingIP) {
	if !c.Lists {
		return nil
	}
	for i := range listed {
		addr := listedAddress(i)
		ips = append(ips, &v1alpha1.FloatingIP{
			ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NameOf(addr)},
			Spec:       v1alpha1.FloatingIPSpec{Address: addr.String(), Pool: rackPool(0), Reserved: true},
		})
	}
	return ips
}

// freed returns the addresses that come free while pods are bound. They are on no list.
func (c Case) freed(nodes, pods int) (ips []*v1alpha1.FloatingIP) {
	if !c.Lists {
		return nil
	}
	owner := v1alpha1.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: Measured, Name: "gone", UID: "4c1c3f3e-5a0b-4c3a-9d5e-0d6f7b1e2a77"}
	for i := range pods / 10 {
		ips = append(ips, idle(i%racks(nodes), 1000-i/racks(nodes), owner))
	}
	return ips
}

// idle is an address of a rack that is kept for an owner and has no pod.
func idle(rack, n int, owner v1alpha1.Owner) *v1alpha1.FloatingIP {
	addr := rackAddress(rack, n)
	return &v1alpha1.FloatingIP{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NameOf(addr)},
		Spec:       v1alpha1.FloatingIPSpec{Address: addr.String(), Pool: rackPool(rack), Owner: &owner, ReleasePolicy: v1alpha1.ReleaseRetain},
	}
}

// Bound is called for each pod that is bound. It does not block: it frees an address for every
// ten measured pods, if the case has addresses for that.
func (p *Prepared) Bound(ctx context.Context, pod *v1.Pod) {
	if pod.Namespace != Measured {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bound++
	if p.bound%10 != 0 || len(p.free) == 0 {
		return
	}
	name := p.free[0]
	p.free = p.free[1:]
	p.group.Go(func() error {
		if err := p.ips.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return fmt.Errorf("free address: %w", err)
		}
		return nil
	})
}

// Wait waits for the addresses that come free.
func (p *Prepared) Wait() error { return p.group.Wait() }

// each calls do for all objects, some at a time.
func each[T any](ctx context.Context, objects []T, do func(context.Context, T) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(30)
	for _, object := range objects {
		group.Go(func() error { return do(ctx, object) })
	}
	return group.Wait()
}
