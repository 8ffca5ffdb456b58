// SPDX-License-Identifier: Apache-2.0

package register

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/berth-dev/berth/cmd/kubectl-berth/pool/poolmap"
	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/iprange"
	"github.com/berth-dev/berth/ipam/pools"
)

// Pool is a pool. Its counts are the FloatingIPs in its ranges, at this moment.
type Pool struct {
	Name   string            `json:"name"`
	Subnet string            `json:"subnet"`
	Family v1alpha1.IPFamily `json:"family"`
	VLAN   int32             `json:"vlan,omitempty"`
	// Ready is the status of its condition Ready, and Message its message.
	Ready    string `json:"ready,omitempty"`
	Message  string `json:"message,omitempty"`
	Disabled bool   `json:"disabled,omitempty"`
	poolmap.Terms
	// Capacity is at most 2^63-1, also of larger pools.
	Capacity uint64 `json:"capacity"`
	poolmap.Counts
	Free uint64 `json:"free"`
	// UID and ResourceVersion of the object. Its status changes the resourceVersion, too.
	UID             string `json:"uid"`
	ResourceVersion string `json:"resourceVersion"`
}

// Pools returns all pools, by name. Their names and counts are for everybody.
func (r *Register) Pools() []Pool {
	compiled := r.pools()
	r.mu.RLock()
	defer r.mu.RUnlock()
	all := make([]Pool, 0, len(compiled.all))
	for _, object := range compiled.all {
		all = append(all, compiled.poolOf(object))
	}
	return all
}

func (r *Register) PoolNames() []string {
	var all []string
	for _, object := range r.pools().all {
		all = append(all, object.Name)
	}
	return all
}

func (r *Register) Pool(name string) (Pool, error) {
	compiled, object, err := r.pool(name)
	if err != nil {
		return Pool{}, err
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	return compiled.poolOf(object), nil
}

var ErrNoPool = errors.New("there is no IPPool of this name")

func (r *Register) pool(name string) (*compiled, *v1alpha1.IPPool, error) {
	compiled := r.pools()
	for _, object := range compiled.all {
		if object.Name == name {
			return compiled, object, nil
		}
	}
	return nil, nil, fmt.Errorf("IPPool %s: %w", name, ErrNoPool)
}

// count counts the rows by the pool that keeps their address. The caller holds the lock.
func (r *Register) count(compiled *compiled) {
	compiled.counts = make([]poolmap.Counts, len(compiled.snapshot.Pools()))
	for _, row := range r.rows() {
		if home, ok := compiled.snapshot.Home(row.addr); ok {
			compiled.counts[home].Add(row.state.of())
		}
	}
}

// recount counts a change of the row of an address. The caller holds the lock.
func (r *Register) recount(before, after *Row) {
	if r.compiled == nil {
		return
	}
	home, ok := r.compiled.snapshot.Home(cmp.Or(before, after).addr)
	if ok && before != nil {
		r.compiled.counts[home].Drop(before.state.of())
	}
	if ok && after != nil {
		r.compiled.counts[home].Add(after.state.of())
	}
}

func (c *compiled) poolOf(object *v1alpha1.IPPool) Pool {
	p := Pool{Name: object.Name, UID: string(object.UID), ResourceVersion: object.ResourceVersion, Subnet: object.Spec.Subnet, Family: v1alpha1.IPv4, VLAN: object.Spec.VLAN, Disabled: object.Spec.Disabled, Terms: poolmap.TermsOf(object)}
	if strings.Contains(object.Spec.Subnet, ":") {
		p.Family = v1alpha1.IPv6
	}
	if ready := meta.FindStatusCondition(object.Status.Conditions, v1alpha1.PoolReady); ready != nil {
		p.Ready, p.Message = string(ready.Status), ready.Message
	}
	at, valid := c.snapshot.Index(object.Name)
	if !valid {
		p.Ready, p.Message = "False", fmt.Sprint(c.snapshot.Invalid(object.Name))
		return p
	}
	p.Counts = c.counts[at]
	p.Capacity = min(math.MaxInt64, c.snapshot.Pools()[at].Ranges.Size())
	if taken := p.Taken(); !p.Disabled && p.Capacity > taken {
		p.Free = p.Capacity - taken
	}
	return p
}

// uses are the states of a pool's addresses. Those whose holders are not seen are Taken.
func (r *Register) uses(scope Scope, pool *pools.Pool) poolmap.Uses {
	r.mu.RLock()
	defer r.mu.RUnlock()
	n := 0
	for _, span := range pool.Ranges {
		n += len(r.within(span))
	}
	uses := make(poolmap.Uses, 0, n)
	sees := r.sees(scope)
	for _, span := range pool.Ranges {
		for _, row := range r.within(span) {
			state := row.state.of()
			if !sees(row) {
				state = standing.Taken
			}
			uses = append(uses, poolmap.Use{Addr: row.addr, State: state})
		}
	}
	return uses
}

type Map struct {
	Pool string `json:"pool"`
	// Block is how many addresses a cell has: one, or a block.
	Block uint64   `json:"block"`
	Rows  []MapRow `json:"rows"`
}

// MapRow has letters of package poolmap; x is of somebody whom the asker may not see.
type MapRow struct {
	From  netip.Addr `json:"from"`
	Cells string     `json:"cells"`
}

var ErrNoMap = errors.New("there is no map of this pool")

// Map draws a pool. An error is ErrNoPool or ErrNoMap.
func (r *Register) Map(scope Scope, name string) (Map, error) {
	compiled, _, err := r.pool(name)
	if err != nil {
		return Map{}, err
	}
	pool := compiled.snapshot.Named(name)
	if pool == nil {
		return Map{}, fmt.Errorf("IPPool %s is invalid, %w: %w", name, ErrNoMap, compiled.snapshot.Invalid(name))
	}
	drawn, ok := poolmap.Draw(pool, r.uses(scope, pool))
	if !ok {
		return Map{}, fmt.Errorf("IPPool %s is too large, %w: ask for its free ranges", name, ErrNoMap)
	}
	m := Map{Pool: name, Block: drawn.Block, Rows: []MapRow{}}
	for _, row := range drawn.Rows {
		if strings.Trim(row.Cells, string(poolmap.None)) != "" {
			m.Rows = append(m.Rows, MapRow{row.From, row.Cells})
		}
	}
	return m, nil
}

type Free struct {
	Pool string `json:"pool"`
	Free uint64 `json:"free"`
	// Ranges are the first of them; more says that there are more.
	Ranges []string `json:"ranges"`
	More   bool     `json:"more,omitempty"`
}

// Free returns the free addresses of a pool, in no more than most ranges. An error is ErrNoPool.
func (r *Register) Free(name string, most int) (Free, error) {
	compiled, _, err := r.pool(name)
	if err != nil {
		return Free{}, err
	}
	answer := Free{Pool: name, Ranges: []string{}}
	pool := compiled.snapshot.Named(name)
	if pool == nil || pool.Disabled {
		return answer, nil
	}
	free := poolmap.Untaken(pool, r.uses(Everything, pool))
	answer.Free = min(math.MaxInt64, free.Size())
	answer.More = len(free) > most
	answer.Ranges = iprange.Texts(free[:min(len(free), most)])
	return answer, nil
}

var ErrHidden = errors.New("you may not see whose address this is")

// Address returns one address, whether or not it has a FloatingIP. An error is ErrHidden.
func (r *Register) Address(scope Scope, addr netip.Addr) (standing.Address, error) {
	compiled := r.pools()
	r.mu.RLock()
	defer r.mu.RUnlock()
	row := r.row(addr)
	if row == nil {
		return standing.AddressOfNobody(addr, compiled.all, compiled.snapshot), nil
	}
	if !scope.Sees(row.namespace.String()) {
		return standing.Address{}, fmt.Errorf("%s is taken, but %w", addr, ErrHidden)
	}
	return r.addressOf(row, compiled.all, now()), nil
}

// addressOf returns the address of a row. The caller holds the lock.
func (r *Register) addressOf(row *Row, pools []*v1alpha1.IPPool, at time.Time) standing.Address {
	ip := floatingIP(row)
	address := standing.AddressOf(ip)
	address.UID, address.ResourceVersion = string(ip.UID), ip.ResourceVersion
	address.Cool(ip, pools, at)
	return address
}
