// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/berth-dev/berth/ipam/allocator"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/iprange"
	"github.com/berth-dev/berth/ipam/lastnode"
	"github.com/berth-dev/berth/ipam/pools"
)

// impossible says why no node can have the pod, even if addresses become free; nil if some node may
// have it.
func (c *Candidates) impossible() error {
	if err := c.homeless(); err != nil {
		return err
	}
	if err := c.unadmitted(); err != nil {
		return err
	}
	snapshot := c.state.snapshot
	for part := range c.parts {
		if len(c.parts[part].kept) > 0 {
			continue
		}
		// A disabled pool is not ruled out: Filter reports it.
		shortage := c.request.noPool(part, snapshot, func(*pools.Pool) bool { return true })
		if shortage == nil {
			continue
		}
		if len(snapshot.Pools()) > 0 || len(c.request.Pools) > 0 {
			for i, reason := range shortage.Reasons {
				shortage.Reasons[i] = c.describePart(part, reason)
			}
		}
		shortage.Reasons = slices.Concat(c.stays(), shortage.Reasons)
		return shortage
	}
	return nil
}

// homeless returns an error if the pod must have an address that is in no pool any more: it is
// unknown which nodes reach such an address.
func (c *Candidates) homeless() error {
	for _, part := range c.parts {
		homed := func(record allocator.Record) bool { return c.poolOf(&record) != nil }
		if len(part.kept) > 0 && !slices.ContainsFunc(part.kept, homed) {
			lost := &part.kept[len(part.kept)-1]
			return &ShortageError{
				Reasons: []string{fmt.Sprintf("address %s is retained for %s %s/%s but no valid pool contains it any longer",
					lost.Addr, lost.Owner.Kind, lost.Owner.Namespace, lost.Owner.Name)},
				Remedy: fmt.Sprintf("put it back into pool %q, or give it up: kubectl delete floatingip %s", lost.Pool, v1alpha1.NameOf(lost.Addr)),
				Lacks:  LackOwner,
			}
		}
	}
	return nil
}

// unadmitted returns an error if the pod must have an address whose pool no longer admits the
// namespace, or does not allow the pod's terms, and the address had other terms.
func (c *Candidates) unadmitted() error {
	for _, part := range c.parts {
		if len(part.usable) > 0 {
			continue
		}
		for _, refused := range slices.Backward(part.kept) {
			pool := c.poolOf(&refused)
			switch {
			case pool == nil:
				continue
			case pool.AdmitsNamespace(c.request.namespaceLabels()):
				return &ShortageError{
					Reasons: []string{fmt.Sprintf("address %s is retained for %s %s/%s on other terms, but %s",
						refused.Addr, refused.Owner.Kind, refused.Owner.Namespace, refused.Owner.Name, c.request.RefusedTerms(pool))},
					Lacks: LackOwner,
				}
			}
			return &ShortageError{
				Reasons: []string{fmt.Sprintf("address %s is retained for %s %s/%s, but %s does not admit namespace %q: its labels do not match spec.namespaceSelector (%s)",
					refused.Addr, refused.Owner.Kind, refused.Owner.Namespace, refused.Owner.Name, pool, c.request.Namespace, pool.NamespaceSelector())},
				Remedy: fmt.Sprintf("label the namespace to match, or give the address up: kubectl delete floatingip %s", v1alpha1.NameOf(refused.Addr)),
				Lacks:  LackOwner,
			}
		}
	}
	return nil
}

// describePart says which part a text is about, if the request has several parts or
// the part has ranges.
func (c *Candidates) describePart(part int, text string) string {
	p := c.request.Parts[part]
	var what []string
	if p.Family != "" && len(c.parts) > 1 && p.Ranges.IsEmpty() {
		what = append(what, string(p.Family))
	}
	if !p.Ranges.IsEmpty() {
		what = append(what, "one of "+rangesText(p.Ranges))
	}
	switch {
	case len(c.parts) == 1 && len(what) == 0:
		return text
	case len(c.parts) == 1:
		return fmt.Sprintf("address (%s): %s", strings.Join(what, ", "), text)
	case len(what) == 0:
		return fmt.Sprintf("address %d of %d: %s", part+1, len(c.parts), text)
	}
	return fmt.Sprintf("address %d of %d (%s): %s", part+1, len(c.parts), strings.Join(what, ", "), text)
}

func rangesText(list iprange.List) string {
	const most = 4
	ranges := list.Ranges()
	var texts []string
	for i, r := range ranges {
		if i == most {
			texts = append(texts, fmt.Sprintf("%d more", len(ranges)-most))
			break
		}
		texts = append(texts, r.String())
	}
	return strings.Join(texts, ", ")
}

// lackOf returns the Lack of a request that the book cannot serve.
func lackOf(err error) Lack {
	if errors.Is(err, allocator.ErrExhausted) {
		return LackAddress
	}
	return LackOwner
}

// explain returns a text that says why the book cannot serve the request from the
// pools of a node.
func (c *Candidates) explain(err error, nodePools []int) string {
	var unmet *allocator.UnmetError
	if !errors.As(err, &unmet) {
		return err.Error()
	}
	part := unmet.Want
	switch {
	case errors.Is(err, allocator.ErrLimit):
		return c.describePart(part, c.limitText())
	case errors.Is(err, allocator.ErrSetInUse):
		c.setInUse.once.Do(func() { c.setInUse.text = c.setInUseText() })
		return c.setInUse.text
	case errors.Is(err, allocator.ErrLost):
		return c.describePart(part, "other pods of the pod's workload have the addresses retained for it")
	}
	reasons, remedy := c.stays(), ""
	for _, position := range nodePools {
		if !c.serves(part, position) {
			continue
		}
		reason, what := c.shortOf(part, c.pool(position))
		reasons = append(reasons, reason)
		if what != "" {
			remedy = what
		}
	}
	return c.describePart(part, (&ShortageError{Reasons: reasons, Remedy: remedy}).Error())
}

// stays says that an address of the owner stays kept while the pod waits for an address of another
// pool; nil if there is no such address.
func (c *Candidates) stays() []string {
	if len(c.givenUp) == 0 {
		return nil
	}
	return []string{c.notNamed(&c.givenUp[0]) + ", and stays kept until the pod has another"}
}

// shortOf says why a pool that serves a part has no address. remedy is what the user can do, or
// empty.
func (c *Candidates) shortOf(part int, pool *pools.Pool) (reason, remedy string) {
	ranges := c.request.Parts[part].Ranges.Ranges()
	exact := len(ranges) == 1 && ranges[0].First == ranges[0].Last
	switch {
	case pool.Disabled:
		return fmt.Sprintf("%s is disabled", pool), ""
	case c.atCap(pool) && !(exact && c.isRecorded(ranges[0].First)):
		return c.capText(pool), c.capRemedy(pool)
	case exact:
		return c.whoHas(ranges[0].First), ""
	}
	what, own := "no free address", ""
	if len(ranges) > 0 {
		what = "no free address in these ranges"
		if c.hasAll(ranges) {
			own = ", all with pods" + c.ofItsOwn()
		}
	} else if n := c.book.Counts(pool.Name); n.Free > 0 {
		what = fmt.Sprintf("only %d free", n.Free)
	}
	reason = fmt.Sprintf("%s has %s (%s)%s", pool, what, usage(c.book.Counts(pool.Name), pool.Cooldown), own)
	if len(c.state.snapshot.Overlaps(pool.Name)) > 0 {
		reason += ", and " + c.state.snapshot.OverlapText(pool.Name)
	}
	return reason, ""
}

// causeOf returns AtCap if a pool could serve the request but gives the namespace no more
// addresses, otherwise NoneFree.
func (c *Candidates) causeOf(err error, nodePools []int) Cause {
	var unmet *allocator.UnmetError
	if errors.As(err, &unmet) && errors.Is(err, allocator.ErrExhausted) && slices.ContainsFunc(nodePools, func(position int) bool {
		return c.serves(unmet.Want, position) && c.atCap(c.pool(position))
	}) {
		return AtCap
	}
	return NoneFree
}

// atCap says whether a pool has free addresses for the request, but its cap does not allow the
// namespace enough of them.
func (c *Candidates) atCap(pool *pools.Pool) bool {
	left := allowance(pool, c.book.Share(pool.Name, c.request.Namespace))
	return left < min(c.book.Counts(pool.Name).Free, uint64(len(c.parts)))
}

func (c *Candidates) capText(pool *pools.Pool) string {
	has := c.book.Share(pool.Name, c.request.Namespace)
	return fmt.Sprintf("%s gives namespace %q at most %d addresses, and it has %d (%d in use, %d retained)",
		pool, c.request.Namespace, pool.MaxPerNamespace, has.Total(), has.Allocated, has.Retained)
}

// mostAsked is the maximum number of an owner's addresses that are read for a text.
const mostAsked = 100

// setInUseText says that other pods have the owner's addresses. If these are not too many, it also
// says how many of the pods are terminating.
func (c *Candidates) setInUseText() string {
	owner := c.claimant.Owner
	v4, v6 := c.book.Owned(owner)
	all, terminating := v4+v6, 0
	if all <= mostAsked {
		for _, record := range c.book.RecordsOf(owner) {
			if c.terminating(&record) {
				terminating++
			}
		}
	}
	text := fmt.Sprintf("%s %q has all %s that it keeps", owner.Kind, owner.Name, plural(all, "address", "addresses"))
	switch {
	case all > mostAsked:
	case terminating == 0:
		text += ", all with running pods"
	case terminating == 1:
		text += "; 1 is with a pod that is terminating"
	default:
		text += fmt.Sprintf("; %d are with pods that are terminating", terminating)
	}
	text += fmt.Sprintf(" (the pod gets the first that is given back; annotation %s on the pod template allows more)", v1alpha1.AnnotationSpareAddresses)
	if all <= mostAsked && terminating == 0 {
		text += "; " + endsFirst
	}
	return text
}

// endsFirst says how to make an update end pods before it starts pods that need their addresses.
const endsFirst = "an update that starts a pod before it ends one waits for ever: set maxUnavailable: 1 and maxSurge: 0, or strategy Recreate"

// isOfItsOwn says whether a running pod of the waiting pod's workload has the address. The records
// of an IPClaim do not name the workload, but the name of a pod begins with its workload's name.
func (c *Candidates) isOfItsOwn(record *allocator.Record) bool {
	if record.PodUID == "" || record.PodUID == c.request.UID || record.Owner.Namespace != c.request.Namespace || c.terminating(record) {
		return false
	}
	if c.request.Claim == "" {
		return record.Owner == c.workload
	}
	rest, ok := strings.CutPrefix(record.PodName, c.workload.Name+"-")
	return ok && strings.Count(rest, "-") == 1
}

// ofItsOwn says that the pods with the addresses belong to the waiting pod's workload.
func (c *Candidates) ofItsOwn() string {
	return fmt.Sprintf(", of the same %s; list one more address, because %s", c.workload.Kind, endsFirst)
}

// hasAll says whether pods of the workload have all addresses of a list; false for a long list.
func (c *Candidates) hasAll(ranges []iprange.Range) bool {
	asked := 0
	for _, r := range ranges {
		for addr := r.First; addr.Compare(r.Last) <= 0; addr = addr.Next() {
			record, ok := c.book.Stored(addr)
			if asked++; asked > mostAsked || !ok || !c.isOfItsOwn(&record) {
				return false
			}
		}
	}
	return true
}

// limitText says that the pod's claim has all its addresses, and how many of them pods of the same
// workload have.
func (c *Candidates) limitText() string {
	const remedy = "raise spec.size, or wait for one of its pods to end"
	text, own := fmt.Sprintf("IPClaim %q has all %d addresses that its size allows", c.request.Claim, c.claimant.Limit), 0
	if v4, v6 := c.book.Owned(c.claimant.Owner); v4+v6 <= mostAsked {
		for _, record := range c.book.RecordsOf(c.claimant.Owner) {
			if c.isOfItsOwn(&record) {
				own++
			}
		}
	}
	if own == 0 {
		return text + ": " + remedy
	}
	return fmt.Sprintf("%s, %d with pods of the same %s: %s; %s", text, own, c.workload.Kind, remedy, endsFirst)
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// whoHas returns a text that says why an address is not free. The text names no owner of another
// namespace, because everybody who may read the pod's events can read it.
func (c *Candidates) whoHas(addr netip.Addr) string {
	record, ok := c.book.Stored(addr)
	switch {
	case !ok:
		return fmt.Sprintf("%s is being given to another pod", addr)
	case record.Cooling && record.LastNode.Name != "" && !record.ReleasedAt.IsZero():
		var cooldown time.Duration
		if pool := c.poolOf(&record); pool != nil {
			cooldown = pool.Cooldown
		}
		return lastnode.Text(addr.String(), record.LastNode.Name, lastnode.Until(record.ReleasedAt, cooldown))
	case record.Cooling:
		return fmt.Sprintf("%s was freed and is in cooldown", addr)
	case record.Owner == (Owner{}):
		return fmt.Sprintf("%s is reserved by an administrator", addr)
	case record.Owner.Namespace != c.request.Namespace:
		return fmt.Sprintf("%s is in use by another namespace (with the right to read FloatingIPs, kubectl get floatingip %s says which)", addr, addr)
	case record.PodUID != "":
		text := fmt.Sprintf("%s is held by pod %s/%s", addr, record.Owner.Namespace, record.PodName)
		if c.isOfItsOwn(&record) {
			text += c.ofItsOwn()
		}
		return text
	}
	return fmt.Sprintf("%s is retained for %s %s/%s", addr, record.Owner.Kind, record.Owner.Namespace, record.Owner.Name)
}

func (c *Candidates) capRemedy(pool *pools.Pool) string {
	return fmt.Sprintf("kubectl get floatingips --field-selector spec.owner.namespace=%s lists them: give up addresses that are no longer needed, or have an administrator raise spec.maxPerNamespace of IPPool %q",
		c.request.Namespace, pool.Name)
}

func (c *Candidates) isRecorded(addr netip.Addr) bool {
	_, ok := c.book.Stored(addr)
	return ok
}

// usage says how the addresses of a pool are used. It has no times that count down, because each
// different text would be a new event of the pod.
func usage(n allocator.Counts, cooldown time.Duration) string {
	text := fmt.Sprintf("%d in use, %d retained", n.Allocated, n.Retained)
	if n.Reserved > 0 {
		text += fmt.Sprintf(", %d reserved", n.Reserved)
	}
	if n.Cooling > 0 {
		text += fmt.Sprintf(", %d cooling down with cooldown %s", n.Cooling, cooldown)
	}
	return text
}
