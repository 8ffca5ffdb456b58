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

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/audit"
	"github.com/berth-dev/berth/cmd/kubectl-berth/check"
	"github.com/berth-dev/berth/cmd/kubectl-berth/cluster"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
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
	reported []Release
}

// NewRelease returns the command release.
func NewRelease(of *cluster.Cluster, streams genericiooptions.IOStreams) *cobra.Command {
	o := &releasing{}
	return command.Command{
		Use: "release [ADDRESS...] [--retained-longer-than DURATION | -f REPORT]", Short: "Frees addresses that no pod has",
		Long: releaseLong, Example: releaseExamples, Args: cobra.ArbitraryArgs, Complete: of.CompleteAddresses,
		CompleteFlags: map[string]cobra.CompletionFunc{"pool": of.CompletePools},
		Writes:        true, Found: "some addresses are left",
		Flags: func(flags *pflag.FlagSet) {
			flags.StringVar(&o.age, "retained-longer-than", "", "Addresses that have been kept without a pod for longer than this: 30d, 12h.")
			flags.StringVar(&o.pool, "pool", "", "With --retained-longer-than: of this pool only.")
			flags.StringVarP(&o.file, "filename", "f", "", "Report whose addresses to free; - is stdin.")
		},
		Prepare: o.prepare,
		Answer:  o.release,
	}.New(of, streams)
}

// Outcome of an address.
type Outcome string

// Outcomes.
const (
	// ToFree: it can be freed.
	ToFree Outcome = "to free"
	// Freed by this command.
	Freed Outcome = "freed"
	// Gone: it was free already.
	Gone Outcome = "free"
	// Left as it is.
	Left Outcome = "left"
)

// Release is the outcome for an address, as -o json prints it.
type Release struct {
	Address         string  `json:"address"`
	Outcome         Outcome `json:"outcome"`
	Pool            string  `json:"pool,omitempty"`
	Owner           string  `json:"owner,omitempty"`
	LastPod         string  `json:"lastPod,omitempty"`
	Note            string  `json:"note,omitempty"`
	UID             string  `json:"uid,omitempty"`
	ResourceVersion string  `json:"resourceVersion,omitempty"`
	// RetainedSince is when the address lost its pod.
	RetainedSince *metav1.Time `json:"retainedSince,omitempty"`
}

// kind of the list that -o json prints.
const kind = "ReleaseList"

func (o *releasing) prepare(call *command.Call) (err error) {
	o.Call = call
	given := 0
	for _, is := range []bool{len(call.Args) > 0, o.age != "", o.file != ""} {
		if is {
			given++
		}
	}
	switch {
	case given != 1:
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
		o.addrs, err = standing.ParseAddrs(call.Args)
	}
	return err
}

func (o *releasing) release(ctx context.Context, _ *command.Call) (*answer.Answer, error) {
	var releases []Release
	var err error
	switch {
	case o.file != "":
		releases, err = o.ofReport(ctx)
	case o.age != "":
		releases, err = o.retained(ctx)
	default:
		releases, err = o.named(ctx, o.addrs...)
	}
	if err != nil {
		return nil, err
	}
	for i := range releases {
		if err := o.free(ctx, &releases[i]); err != nil {
			return o.answer(releases[:i]), fmt.Errorf("free %s: %w", releases[i].Address, err)
		}
	}
	if slices.ContainsFunc(releases, func(r Release) bool { return r.Outcome == Left }) {
		err = answer.FindingsError("")
	}
	return o.answer(releases), err
}

// report reads the addresses of a report.
func (o *releasing) report() ([]Release, error) {
	text, err := command.ReadFile(o.file, o.In)
	if err != nil {
		return nil, fmt.Errorf("read the report: %w", err)
	}
	if text, err = yaml.YAMLToJSON(text); err != nil {
		return nil, fmt.Errorf("read the report %s: %w", o.file, err)
	}
	var read struct {
		metav1.TypeMeta
		Items    []Release
		Findings []audit.Finding
	}
	if err := json.Unmarshal(text, &read); err != nil {
		return nil, fmt.Errorf("read the report %s: %w", o.file, err)
	}
	switch read.Kind {
	case kind:
		return slices.DeleteFunc(read.Items, func(r Release) bool { return r.Outcome != ToFree }), nil
	case check.Kind:
		var releases []Release
		for _, f := range read.Findings {
			if !slices.Contains([]audit.Code{audit.OwnerGone, audit.RestOverdue, audit.PoolGone, audit.OutsidePool}, f.Code) {
				continue
			}
			if len(f.Objects) == 0 {
				return nil, fmt.Errorf("read the report %s: finding %s of address %q names no object", o.file, f.Code, f.Address)
			}
			if object := f.Objects[0]; !slices.ContainsFunc(releases, func(r Release) bool { return r.UID == object.UID }) {
				releases = append(releases, Release{Address: f.Address, UID: object.UID, ResourceVersion: object.ResourceVersion})
			}
		}
		return releases, nil
	}
	return nil, fmt.Errorf("%s is no report: it must be the output of \"kubectl berth check -o json\" or \"kubectl berth release --dry-run -o json\"", o.file)
}

// of returns the possible outcome for an address that exists.
func of(ip *v1alpha1.FloatingIP) Release {
	spec := &ip.Spec
	r := Release{Address: spec.Address, Outcome: ToFree, Pool: spec.Pool, LastPod: spec.LastPod, UID: string(ip.UID), ResourceVersion: ip.ResourceVersion}
	if spec.Owner != nil {
		r.Owner = fmt.Sprintf("%s %s/%s", spec.Owner.Kind, spec.Owner.Namespace, spec.Owner.Name)
	}
	if spec.Pod == nil {
		r.RetainedSince = spec.Since
	}
	switch {
	case spec.Pod != nil:
		r.Outcome, r.Note = Left, whose(ip)+": delete the pod"
	case spec.Reserved:
		r.Outcome, r.Note = Left, "it is reserved: use kubectl berth unreserve"
	case spec.ExternallyAssigned:
		r.Outcome, r.Note = Left, "the external assigner has not detached it from node "+spec.Node
	case ip.InConflict():
		r.Outcome, r.Note = Left, "a host outside of the cluster has it, and pods would get it: kubectl describe floatingip "+ip.Name
	case spec.ReleasedAt != nil:
		r.Note = "its cooldown ends early"
	}
	return r
}

func (o *releasing) named(ctx context.Context, addrs ...netip.Addr) ([]Release, error) {
	var releases []Release
	for _, addr := range addrs {
		ip, err := o.Berth.FloatingIPs.Get(ctx, v1alpha1.NameOf(addr), metav1.GetOptions{})
		switch {
		case cluster.IsNoSuch(err):
			releases = append(releases, Release{Address: addr.String(), Outcome: Gone, Note: "nobody has it"})
		case err != nil:
			return nil, fmt.Errorf("get FloatingIP %s: %w", v1alpha1.NameOf(addr), err)
		default:
			releases = append(releases, of(ip))
		}
	}
	return releases, nil
}

func (o *releasing) ofReport(ctx context.Context) ([]Release, error) {
	var releases []Release
	for _, was := range o.reported {
		addr, err := netip.ParseAddr(was.Address)
		if err != nil || was.UID == "" || was.ResourceVersion == "" {
			return nil, fmt.Errorf("read the report: the entry of address %q lacks an address, uid or resourceVersion", was.Address)
		}
		now, err := o.named(ctx, addr)
		if err != nil {
			return nil, err
		}
		r := now[0]
		if r.Outcome == ToFree && (r.UID != was.UID || r.ResourceVersion != was.ResourceVersion) {
			r.Outcome, r.Note = Left, "it has changed since the report"
		}
		releases = append(releases, r)
	}
	return releases, nil
}

func (o *releasing) retained(ctx context.Context) ([]Release, error) {
	before := time.Now().Add(-o.longer)
	var releases []Release
	err := cluster.EachFloatingIP(ctx, o.Berth, cluster.OfPool(o.pool), func(ip *v1alpha1.FloatingIP) error {
		spec := &ip.Spec
		if spec.Pod == nil && spec.Owner != nil && !spec.Reserved && spec.Since != nil && spec.Since.Time.Before(before) {
			releases = append(releases, of(ip))
		}
		return nil
	})
	return releases, err
}

// free frees an address, or asks the API server whether it would.
func (o *releasing) free(ctx context.Context, r *Release) error {
	if r.Outcome != ToFree {
		return nil
	}
	addr, err := netip.ParseAddr(r.Address)
	if err != nil {
		return err
	}
	err = remove(ctx, o.Berth, v1alpha1.NameOf(addr), r.UID, r.ResourceVersion, o.DryRuns())
	switch {
	case cluster.IsNoSuch(err):
		r.Outcome, r.Note = Gone, "it was freed a moment ago"
	case apierrors.IsConflict(err):
		r.Outcome, r.Note = Left, "it changed a moment ago"
	case err != nil:
		return err
	case !o.DryRun:
		r.Outcome = Freed
	}
	return nil
}

func (o *releasing) answer(releases []Release) *answer.Answer {
	count := map[Outcome]int{}
	table := answer.NewTable("Address", "Outcome", "Pool", "Owner", "Last-Pod", "Retained", "Note")
	a := answer.List(kind, releases, table, func(r *Release) (name string, cells []any) {
		age := ""
		if r.RetainedSince != nil {
			age = duration.HumanDuration(time.Since(r.RetainedSince.Time))
		}
		count[r.Outcome]++
		if addr, err := netip.ParseAddr(r.Address); err == nil && (r.Outcome == ToFree || r.Outcome == Freed) {
			name = "floatingip." + v1alpha1.GroupName + "/" + v1alpha1.NameOf(addr)
		}
		return name, []any{r.Address, string(r.Outcome), r.Pool, r.Owner, r.LastPod, age, r.Note}
	})
	a.Text = func(out io.Writer, _ answer.Paint) {
		switch {
		case count[ToFree] > 0:
			fmt.Fprintf(out, "\n%d would be freed. Nothing was changed.\n", count[ToFree])
		case len(releases) == 0:
			fmt.Fprintln(out, "There is nothing to free.")
		case !o.DryRun:
			fmt.Fprintf(out, "\n%d freed.\n", count[Freed])
		}
	}
	return a
}
