// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/sorted"
)

// purpose is the use that an owner has for addresses: for all its pods, for one pod
// name, or for one node.
type purpose struct {
	kind, namespace, name string
	uid                   types.UID
	podName, nodeName     string
}

// String is different for different purposes.
func (p purpose) String() string {
	return strings.Join([]string{p.kind, p.namespace, p.name, string(p.uid), p.podName, p.nodeName}, "/")
}

func purposeOf(owner *v1alpha1.Owner) purpose {
	return purpose{owner.Kind, owner.Namespace, owner.Name, owner.UID, owner.PodName, owner.NodeName}
}

func samePurpose(a, b *v1alpha1.FloatingIP) bool {
	return a.Spec.Owner != nil && b.Spec.Owner != nil && purposeOf(a.Spec.Owner) == purposeOf(b.Spec.Owner)
}

// isShared reports whether any pod of the owner can take the address. Then its rank
// decides whether it is wanted.
func isShared(owner *v1alpha1.Owner) bool { return owner.PodName == "" && owner.NodeName == "" }

// rankings keep the addresses of every purpose in the order of [before]. A rank is found
// by binary search, so that reconciling all n addresses of an owner takes n log n steps.
// Safe for concurrent use; no method blocks.
type rankings struct {
	// asks returns the number of addresses that the live pod of an address requests; 0 if
	// it has no live pod. It does not block.
	asks func(ip *v1alpha1.FloatingIP) int64
	// load returns the addresses of a purpose, to rank them when one of them is needed. It is nil if
	// put ranks the addresses.
	load func(of purpose) []*v1alpha1.FloatingIP

	mu  sync.Mutex
	all map[purpose]*ranking
	// ranked has the addresses as they were put last, by name.
	ranked map[string]ranked
}

// ranked is an address in a ranking, with the number of addresses that its pod requests.
type ranked struct {
	ip   *v1alpha1.FloatingIP
	asks int64
}

// ranking has the addresses of one purpose.
type ranking struct {
	four, six sequence
	// shares has the addresses of each pod, by pod name; only for a shared purpose.
	shares map[string]share
	// sizes counts the pods by their number of addresses.
	sizes map[int64]int
}

// sequence has addresses of one family in the order of before.
type sequence struct {
	all []*v1alpha1.FloatingIP
	// aged has the same addresses, the oldest first; only for a shared purpose, because
	// for others the order of before is the same.
	aged []*v1alpha1.FloatingIP
	// yielding are the addresses that yields accepts.
	yielding []*v1alpha1.FloatingIP
}

// share counts the addresses that one pod has or had last (total), the part of them that
// it holds now (held), and the number that it requests (asks).
type share struct{ total, held, asks int64 }

func (s share) size() int64 { return max(s.total, s.asks) }

func newRankings(asks func(ip *v1alpha1.FloatingIP) int64) *rankings {
	return &rankings{asks: asks, all: map[purpose]*ranking{}, ranked: map[string]ranked{}}
}

// put ranks an address as it is now. It reports whether the ranks of others may have
// changed. Only the event handler calls it, so that the newest state wins.
func (r *rankings) put(ip *v1alpha1.FloatingIP) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if was, ok := r.ranked[ip.Name]; ok && was.ip == ip {
		return false
	}
	was := r.drop(ip.Name)
	if ip.Spec.Owner == nil {
		return false
	}
	r.add(ip)
	return was == nil || !samePurpose(was, ip) || before(was, ip) != 0 || yields(was) != yields(ip)
}

// podChanged updates the number of addresses that the pod of these addresses requests.
func (r *rankings) podChanged(held []*v1alpha1.FloatingIP) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ip := range held {
		if was := r.drop(ip.Name); was != nil {
			r.add(was)
		}
	}
}

func (r *rankings) add(ip *v1alpha1.FloatingIP) {
	now := ranked{ip, r.asks(ip)}
	r.ranked[ip.Name] = now
	key := purposeOf(ip.Spec.Owner)
	if r.all[key] == nil {
		r.all[key] = &ranking{}
	}
	r.all[key].add(now)
}

func (r *rankings) remove(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drop(name)
}

// drop removes an address and returns it as it was ranked; nil if it was not ranked.
func (r *rankings) drop(name string) *v1alpha1.FloatingIP {
	was, ok := r.ranked[name]
	if !ok {
		return nil
	}
	delete(r.ranked, name)
	key := purposeOf(was.ip.Spec.Owner)
	of := r.all[key]
	if of.remove(was); len(of.four.all)+len(of.six.all) == 0 {
		delete(r.all, key)
	}
	return was.ip
}

// standing returns the rank of an address. ok is false if another version of the address is ranked:
// then its event will follow.
func (r *rankings) standing(ip *v1alpha1.FloatingIP) (at standing, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := r.of(ip)
	if of == nil {
		return standing{}, false
	}
	return of.standing(ip), true
}

// leave removes an address that is about to be freed because of its rank, so that no
// other address is freed for the same surplus. It returns false if the rank has changed.
// If the caller does not free the address, it must call putBack.
func (r *rankings) leave(ip *v1alpha1.FloatingIP, at standing) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := r.of(ip)
	if of == nil || of.standing(ip) != at {
		return false
	}
	r.drop(ip.Name)
	return true
}

// putBack undoes leave. cached returns the address, or nil if it is gone. It is called
// under the lock, so that a deletion event that follows removes the address again.
func (r *rankings) putBack(cached func() *v1alpha1.FloatingIP) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ip := cached()
	if ip == nil || ip.Spec.Owner == nil {
		return
	}
	if _, ok := r.ranked[ip.Name]; !ok {
		r.add(ip)
	}
}

// of returns the ranking with this version of the address; nil if there is none.
func (r *rankings) of(ip *v1alpha1.FloatingIP) *ranking {
	if ip.Spec.Owner == nil {
		return nil
	}
	of := r.ranking(ip.Spec.Owner)
	was, ok := r.ranked[ip.Name]
	if !ok || was.ip.UID != ip.UID || was.ip.ResourceVersion != ip.ResourceVersion {
		return nil
	}
	return of
}

// mostLoaded is the number of loaded addresses beyond which other purposes' addresses
// are forgotten before more are loaded.
const mostLoaded = 4096

// ranking returns the addresses of an owner's purpose.
func (r *rankings) ranking(owner *v1alpha1.Owner) *ranking {
	key := purposeOf(owner)
	if of, ok := r.all[key]; ok || r.load == nil {
		return cmp.Or(of, &ranking{})
	}
	if len(r.ranked) > mostLoaded {
		clear(r.all)
		clear(r.ranked)
	}
	ips := r.load(key)
	slices.SortFunc(ips, older) // In this order each address is added at the end.
	for _, ip := range ips {
		r.add(ip)
	}
	return cmp.Or(r.all[key], &ranking{})
}

// demand estimates the number of addresses of one pod, for workloads without a pod template: the
// largest number that a pod of the owner requests or had. 0 means unknown.
func (r *rankings) demand(owner *v1alpha1.Owner) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := r.ranking(owner)
	if len(of.four.all)+len(of.six.all) == 0 || !isShared(owner) {
		return 0
	}
	most := int64(1)
	for size := range of.sizes {
		most = max(most, size)
	}
	return most
}

func (r *rankings) members(owner *v1alpha1.Owner) []*v1alpha1.FloatingIP {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := r.ranking(owner)
	return slices.Concat(of.four.all, of.six.all)
}

// lastYielding returns the names of the addresses that the owner gives up first, one of each
// family. If the owner wants these, it wants all its addresses.
func (r *rankings) lastYielding(owner *v1alpha1.Owner) (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := r.ranking(owner)
	for _, s := range []*sequence{&of.four, &of.six} {
		if n := len(s.yielding); n > 0 {
			names = append(names, s.yielding[n-1].Name)
		}
	}
	return names
}

// nextYielding returns the name of the address that the owner gives up after ip; empty if
// there is none.
func (r *rankings) nextYielding(ip *v1alpha1.FloatingIP) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	of := r.of(ip)
	if of == nil {
		return ""
	}
	s := of.sequence(ip)
	if i, _ := slices.BinarySearchFunc(s.yielding, ip, before); i > 0 {
		return s.yielding[i-1].Name
	}
	return ""
}

func (o *ranking) sequence(ip *v1alpha1.FloatingIP) *sequence {
	if ip.Family() == v1alpha1.IPv6 {
		return &o.six
	}
	return &o.four
}

func (o *ranking) standing(ip *v1alpha1.FloatingIP) standing {
	s := o.sequence(ip)
	rank, _ := slices.BinarySearchFunc(s.all, ip, before)
	age := rank
	if isShared(ip.Spec.Owner) {
		age, _ = slices.BinarySearchFunc(s.aged, ip, older)
	}
	at := standing{family: ip.Family(), rank: int64(rank), age: int64(age)}
	for _, s := range []*sequence{&o.four, &o.six} {
		if len(s.all) > 0 {
			at.families++
		}
	}
	return at
}

func (o *ranking) add(r ranked)    { o.change(r, sorted.Insert, +1) }
func (o *ranking) remove(r ranked) { o.change(r, sorted.Remove, -1) }

// change changes each list that has an address, and the share of its pod by n.
func (o *ranking) change(r ranked, change func(list []*v1alpha1.FloatingIP, ip *v1alpha1.FloatingIP, compare func(a, b *v1alpha1.FloatingIP) int) []*v1alpha1.FloatingIP, n int64) {
	s := o.sequence(r.ip)
	s.all = change(s.all, r.ip, before)
	if isShared(r.ip.Spec.Owner) {
		s.aged = change(s.aged, r.ip, older)
	}
	if yields(r.ip) {
		s.yielding = change(s.yielding, r.ip, before)
	}
	o.share(r, n)
}

// share adds an address to the share of its pod (n is +1), or removes it (n is -1).
func (o *ranking) share(r ranked, n int64) {
	name := lastPod(&r.ip.Spec)
	if name == "" || !isShared(r.ip.Spec.Owner) {
		return
	}
	if o.shares == nil {
		o.shares, o.sizes = map[string]share{}, map[int64]int{}
	}
	s, ok := o.shares[name]
	if ok {
		if o.sizes[s.size()]--; o.sizes[s.size()] == 0 {
			delete(o.sizes, s.size())
		}
	}
	s.total += n
	if r.ip.Spec.Pod != nil {
		s.held += n
		s.asks = r.asks
	}
	if s.held == 0 {
		s.asks = 0
	}
	if s.total == 0 {
		delete(o.shares, name)
		return
	}
	o.shares[name] = s
	o.sizes[s.size()]++
}

// yields reports whether an address is freed if too many come before it.
func yields(ip *v1alpha1.FloatingIP) bool { return !hasUser(ip) && yieldsWithoutPod(ip) }

// yieldsWithoutPod reports whether an address is freed if too many come before it and its pod is
// gone.
func yieldsWithoutPod(ip *v1alpha1.FloatingIP) bool {
	owner := ip.Spec.Owner
	return !ip.Spec.Reserved && isShared(owner) &&
		(owner.IsClaim() || ip.Spec.ReleasePolicy == v1alpha1.ReleaseRetain && !ip.Spec.KeepOnScaleDown)
}
