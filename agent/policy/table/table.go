// SPDX-License-Identifier: Apache-2.0

package table

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/policy/connections"
	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/cni/nftables"
)

// Table is the table of policies in one network namespace. Methods block for the kernel. Only
// Counters, Adopt and EndConnections may be called in parallel to others.
type Table struct {
	connections.Namespace

	// applied is the ruleset in the kernel, nil if unknown.
	applied *applied
	// replace says that the kernel's table has other objects, too.
	replace bool
	// verified is the generation of the kernel's nftables at which the table was as applied, 0 if
	// unknown.
	verified uint32
}

// applied is a ruleset in the kernel.
type applied struct {
	rs    *ruleset.Ruleset
	names names
	// constants are the sets that follow from rules, each as long as a rule names it; counters are the
	// counters that rules name.
	constants map[string]*nftables.Set
	counters  map[string]bool
}

func newApplied(rs *ruleset.Ruleset, n names) *applied {
	a := &applied{rs, n, map[string]*nftables.Set{}, map[string]bool{}}
	use := func(name string, of nftables.Type, ranges ...ruleset.PortRange) {
		a.constants[n.of(name)] = &nftables.Set{Name: n.of(name), Key: []nftables.Type{of}, Interval: true, Constant: true, Elements: elementsOfRanges(of.Size(), ranges)}
	}
	for _, c := range rs.Chains {
		for i := range c.Rules {
			r := &c.Rules[i]
			if r.Counter != "" {
				a.counters[r.Counter] = true
			}
			if len(r.Ports) > 1 {
				use(portsSet(r.Ports), nftables.InetService, r.Ports...)
			}
			if r.NeighborDiscovery {
				use(neighborDiscovery, nftables.ICMPv6Type, ruleset.PortRange{First: 133, Last: 137})
			}
			if r.MulticastListener {
				use(multicastListener, nftables.ICMPv6Type, ruleset.PortRange{First: 130, Last: 132}, ruleset.PortRange{First: 143, Last: 143})
			}
		}
	}
	return a
}

// identity is the table without its content.
var identity = &nftables.Table{Family: nftables.INet, Name: ruleset.TableName}

// New returns the table of the network namespace at a path. An empty path stands for the network
// namespace of the calling process.
func New(netns string) *Table {
	return &Table{Namespace: connections.Namespace(netns)}
}

// attempts is how often a replacement is tried if changes of other programs come in between.
const attempts = 3

// Apply writes a ruleset, which rulesettest.Check must accept, into the kernel. After an error
// packets meet the old rules, and the next Apply replaces the whole table.
func (t *Table) Apply(ctx context.Context, rs *ruleset.Ruleset) error {
	return t.Do(func() error {
		before := t.applied
		t.applied = nil
		if before != nil && !t.replace {
			if change, after, ok := transition(before, rs); ok {
				err := t.commit(ctx, change, after)
				if err == nil {
					return nil
				}
				// Another program changed the table, or its content is not as expected.
				klog.FromContext(ctx).Info("Replaces the table of policies, because the kernel refused a change of it", "namespace", t.Namespace, "err", err)
			}
		}
		return t.replaceAll(ctx, rs)
	})
}

// commit makes a change. It notes whether there were only its own transactions since the kernel's
// table was known to be right.
func (t *Table) commit(ctx context.Context, change *nftables.Change, after *applied) error {
	verified := t.verified
	t.verified = 0
	transactions, err := change.Commit()
	if err != nil && !errors.Is(err, nftables.ErrNotCleared) {
		return err
	}
	t.applied, t.replace = after, err != nil
	if t.replace {
		klog.FromContext(ctx).Info("Could not remove unused objects from the table of policies, and replaces the table next time", "namespace", t.Namespace, "err", err)
		return nil
	}
	if now, err := nftables.Generation(); err == nil && verified != 0 && now == verified+transactions {
		t.verified = now
	}
	return nil
}

// replaceAll makes the table of a ruleset in the kernel, in place of any other.
func (t *Table) replaceAll(ctx context.Context, rs *ruleset.Ruleset) error {
	var errs []error
	for attempt := range attempts {
		before, err := nftables.Generation()
		if err != nil {
			return err
		}
		have, err := identity.Contents()
		if err != nil {
			return err
		}
		t.verified = before
		// Objects that cannot be replaced separately, such as a set of ours with another type, are
		// replaced with the whole table.
		change, after := whole(have, rs, attempt == attempts-1)
		if err = t.commit(ctx, change, after); err == nil {
			return nil
		}
		errs = append(errs, err)
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EOPNOTSUPP) {
			break
		}
	}
	return fmt.Errorf("replace the table of policies: %w", errs[0])
}

// Remove deletes the table, if namespace and table exist.
func (t *Table) Remove(context.Context) error {
	t.applied, t.replace, t.verified = nil, false, 0
	err := t.Do(func() error { return nftables.RemoveTable(identity) })
	if connections.IsGone(err) {
		return nil
	}
	return err
}

// Verify returns ruleset.ErrChanged, with the first difference, if another program changed, removed
// or added objects of the table. The next Apply then replaces the whole table. If no nftables of
// the namespace have changed since the last call, it costs a single request to the kernel.
func (t *Table) Verify(context.Context) error {
	if t.applied == nil {
		return fmt.Errorf("%w: nothing was applied", ruleset.ErrChanged)
	}
	return t.Do(func() error {
		before, err := nftables.Generation()
		if err != nil {
			return err
		}
		if before == t.verified {
			return nil
		}
		if err = t.applied.table().Check(); errors.Is(err, nftables.ErrDiffers) {
			err = fmt.Errorf("%w: %w", ruleset.ErrChanged, err)
		}
		if errors.Is(err, ruleset.ErrChanged) {
			t.applied = nil
		}
		if err != nil {
			return err
		}
		t.verified = 0
		if after, err := nftables.Generation(); err == nil && after == before {
			t.verified = after
		}
		return nil
	})
}

// Counters returns the counters by their names in the rulesets. It may be called in parallel to all
// methods.
func (t *Table) Counters(context.Context) (map[string]ruleset.Count, error) {
	all := map[string]ruleset.Count{}
	err := t.Do(func() error {
		objects, err := identity.Objects()
		for _, o := range objects {
			if o.IsCounter() {
				all[o.Name] = ruleset.Count{Packets: o.Packets, Bytes: o.Bytes}
			}
		}
		return err
	})
	return all, err
}
