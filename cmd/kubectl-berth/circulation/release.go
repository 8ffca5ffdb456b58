// SPDX-License-Identifier: Apache-2.0

package circulation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/audit"
	"github.com/berth-dev/berth/cmd/kubectl-berth/check"
	"github.com/berth-dev/berth/cmd/kubectl-berth/circulation/freeing"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/cmd/kubectl-berth/target"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
)

const releaseLong = `Frees addresses that no pod has: addresses that are kept for an owner, or that cool down.
With --dry-run it says what would be freed, and changes nothing.

An address that a pod has is never freed: delete the pod. A reserved one is put back with
"kubectl berth unreserve". An address that a host outside of the cluster has stays out of
circulation. Each address is freed only if its FloatingIP still has the UID and resourceVersion
that were read, or that the report of -f has: an old report frees no address that has changed
since. After the release the cooldown of the pool begins, if it has one and a pod had the address.

-f reads what "kubectl berth check -o json" or "kubectl berth release --dry-run -o json" wrote. Of the
findings of a check it takes addresses that no pod has: codes B102, B103, B106 and B107.`

const releaseExamples = `  # What would be freed?
  kubectl berth release 10.0.70.12 10.0.70.13 --dry-run

  # Free it
  kubectl berth release 10.0.70.12

  # Find what has been kept for more than a month, then free exactly that
  kubectl berth release --retained-longer-than 30d --dry-run -o json > old.json
  kubectl berth release -f old.json`

type releasing struct {
	*command.Call
	age  string
	pool string
	file string

	// One of these is set before the cluster is asked.
	addrs    []netip.Addr
	longer   time.Duration
	reported []freeing.Release
}

func NewRelease() command.Command {
	o := &releasing{}
	return command.Command{
		Use: "release [ADDRESS...] [--retained-longer-than DURATION | -f REPORT]", Short: "Frees addresses that no pod has",
		Long: releaseLong, Example: releaseExamples, Args: command.AtLeast(0), Names: target.Addresses,
		CompleteFlags: map[string]command.Completion{"pool": command.Names("IPPool")},
		Writes:        true, Found: "some addresses are left",
		Flags: func(flags *pflag.FlagSet) {
			flags.StringVar(&o.age, "retained-longer-than", "", "Addresses that have been kept without a pod for longer than this: 30d, 12h.")
			flags.StringVar(&o.pool, "pool", "", "With --retained-longer-than: of this pool only.")
			flags.StringVarP(&o.file, "filename", "f", "", "Report whose addresses to free; - is stdin.")
		},
		Prepare: o.prepare,
		Answer:  o.release,
	}
}

const kind = "ReleaseList"

func (o *releasing) prepare(call *command.Call) (err error) {
	o.Call = call
	given := map[bool]int{}
	for _, is := range []bool{len(call.Args) > 0, o.age != "", o.file != ""} {
		given[is]++
	}
	switch {
	case given[true] != 1:
		return errors.New("name addresses, or give --retained-longer-than or -f: exactly one of the three")
	case o.pool != "" && o.age == "":
		return errors.New("--pool is for --retained-longer-than")
	case o.file != "":
		o.reported, err = o.report()
	case o.age != "":
		if o.longer, err = command.ParseAge(o.age); err != nil {
			err = fmt.Errorf("--retained-longer-than: %w", err)
		}
	default:
		o.addrs, err = call.Addresses()
	}
	return err
}

func (o *releasing) release(ctx context.Context, _ *command.Call) (*answer.Answer, error) {
	find := o.named
	switch {
	case o.file != "":
		find = o.ofReport
	case o.age != "":
		find = o.retained
	}
	releases, err := find(ctx)
	if err != nil {
		return nil, err
	}
	for i := range releases {
		if err := releases[i].Free(ctx, o.Berth.FloatingIPs, o.DryRuns()); err != nil {
			return o.answer(releases[:i]), fmt.Errorf("free %s: %w", releases[i].Address, err)
		}
	}
	if slices.ContainsFunc(releases, func(r freeing.Release) bool { return r.Outcome == freeing.Left }) {
		err = answer.FindingsError("")
	}
	return o.answer(releases), err
}

func (o *releasing) report() ([]freeing.Release, error) {
	text, err := o.ReadFile(o.file)
	if err != nil {
		return nil, fmt.Errorf("read the report: %w", err)
	}
	if text, err = yaml.YAMLToJSON(text); err != nil {
		return nil, fmt.Errorf("read the report %s: %w", o.file, err)
	}
	var read struct {
		metav1.TypeMeta
		Items    []freeing.Release
		Findings []audit.Finding
	}
	if err := json.Unmarshal(text, &read); err != nil {
		return nil, fmt.Errorf("read the report %s: %w", o.file, err)
	}
	switch read.Kind {
	case kind:
		return slices.DeleteFunc(read.Items, func(r freeing.Release) bool { return r.Outcome != freeing.ToFree }), nil
	case check.Kind:
		var releases []freeing.Release
		for _, f := range read.Findings {
			if !slices.Contains([]audit.Code{audit.OwnerGone, audit.RestOverdue, audit.PoolGone, audit.OutsidePool}, f.Code) {
				continue
			}
			if len(f.Objects) == 0 {
				return nil, fmt.Errorf("read the report %s: finding %s of address %q names no object", o.file, f.Code, f.Address)
			}
			if object := f.Objects[0]; !slices.ContainsFunc(releases, func(r freeing.Release) bool { return r.UID == object.UID }) {
				releases = append(releases, freeing.Release{Address: f.Address, UID: object.UID, ResourceVersion: object.ResourceVersion})
			}
		}
		return releases, nil
	}
	return nil, fmt.Errorf("%s is no report: it must be the output of \"kubectl berth check -o json\" or \"kubectl berth release --dry-run -o json\"", o.file)
}

func (o *releasing) named(ctx context.Context) ([]freeing.Release, error) {
	var releases []freeing.Release
	for _, addr := range o.addrs {
		r, err := freeing.Find(ctx, o.Berth.FloatingIPs, addr)
		if err != nil {
			return nil, err
		}
		if r.Outcome == freeing.Gone {
			all, err := o.Pools(ctx)
			if err != nil {
				return nil, err
			}
			if said := standing.OfNobody(addr, all, pools.Compile(all)); said.State != standing.Free && said.State != standing.Disabled {
				r.Outcome, r.Note = freeing.Left, said.Because
			}
		}
		releases = append(releases, r)
	}
	return releases, nil
}

func (o *releasing) ofReport(ctx context.Context) ([]freeing.Release, error) {
	var releases []freeing.Release
	for _, was := range o.reported {
		addr, err := netip.ParseAddr(was.Address)
		if err != nil || was.UID == "" || was.ResourceVersion == "" {
			return nil, fmt.Errorf("read the report: the entry of address %q lacks an address, uid or resourceVersion", was.Address)
		}
		r, err := freeing.FindSeen(ctx, o.Berth.FloatingIPs, addr, was.UID, was.ResourceVersion)
		if err != nil {
			return nil, err
		}
		releases = append(releases, r)
	}
	return releases, nil
}

func (o *releasing) retained(ctx context.Context) ([]freeing.Release, error) {
	before := time.Now().Add(-o.longer)
	var releases []freeing.Release
	_, ofPool, err := o.OfPool(ctx, "--pool", o.pool)
	if err != nil {
		return nil, err
	}
	err = o.EachFloatingIP(ctx, ofPool, func(ip *v1alpha1.FloatingIP) {
		spec := &ip.Spec
		if !spec.IsHeld() && spec.Owner != nil && !spec.Reserved && spec.Since != nil && spec.Since.Time.Before(before) {
			releases = append(releases, freeing.Of(ip))
		}
	})
	return releases, err
}

func (o *releasing) answer(releases []freeing.Release) *answer.Answer {
	count := map[freeing.Outcome]int{}
	table := answer.NewTable("Address", "Outcome", "Pool", "Owner", "Last-Pod", "Retained", "Note")
	a := answer.List(kind, releases, table, func(r *freeing.Release) (name string, cells []any) {
		count[r.Outcome]++
		if addr, err := netip.ParseAddr(r.Address); err == nil && (r.Outcome == freeing.ToFree || r.Outcome == freeing.Freed) {
			name = answer.NameOf("FloatingIP", v1alpha1.NameOf(addr))
		}
		return name, []any{r.Address, string(r.Outcome), r.Pool, r.Owner, r.LastPod, answer.Age(r.RetainedSince, time.Now()), r.Note}
	})
	a.Text = func(out io.Writer, _ answer.Paint) {
		switch {
		case count[freeing.ToFree] > 0:
			fmt.Fprintf(out, "\n%d would be freed. Nothing was changed.\n", count[freeing.ToFree])
		case len(releases) == 0:
			fmt.Fprintln(out, "There is nothing to free.")
		case !o.DryRun:
			fmt.Fprintf(out, "\n%d freed.\n", count[freeing.Freed])
		}
	}
	return a
}
