// SPDX-License-Identifier: Apache-2.0

package circulation

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/cluster"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/pools"
)

const reserveLong = `Takes addresses out of circulation: no pod gets them until "kubectl berth unreserve".

An address that a pod or a workload has is not reserved: the answer says who has it. Release
it first, or end the pod. The reason is in the annotation berth.dev/reason of the FloatingIP.`

const reserveExamples = `  # The router's second address, until the network team is done
  kubectl berth reserve 10.0.70.12 --reason "VRRP, ticket 4711"

  # Which of them could not be reserved? Changes nothing
  kubectl berth reserve 10.0.70.12 10.0.70.13 --dry-run`

type reserving struct {
	*command.Call
	addrs  []netip.Addr
	reason string
}

// NewReserve returns the command reserve.
func NewReserve(of *cluster.Cluster, streams genericiooptions.IOStreams) *cobra.Command {
	o := &reserving{}
	return o.command(command.Command{
		Use: "reserve ADDRESS...", Short: "Takes addresses out of circulation", Long: reserveLong, Example: reserveExamples,
		Found: "some are not reserved, because somebody has them",
		Flags: func(flags *pflag.FlagSet) {
			flags.StringVar(&o.reason, "reason", "", "Why, for a person who finds the address reserved later.")
		},
	}, o.reserve).New(of, streams)
}

const unreserveLong = `Puts reserved addresses back into circulation: pods get them again.`

// NewUnreserve returns the command unreserve.
func NewUnreserve(of *cluster.Cluster, streams genericiooptions.IOStreams) *cobra.Command {
	o := &reserving{}
	return o.command(command.Command{
		Use: "unreserve ADDRESS...", Short: "Puts reserved addresses back into circulation", Long: unreserveLong,
		Example: "  kubectl berth unreserve 10.0.70.12", Complete: of.CompleteAddresses,
		Found: "some are still reserved, because they changed meanwhile",
	}, o.unreserve).New(of, streams)
}

// command completes a command that calls do with each address.
func (o *reserving) command(c command.Command, do func(context.Context, netip.Addr) (string, error)) command.Command {
	c.Args, c.Writes = cobra.MinimumNArgs(1), true
	c.Prepare = func(call *command.Call) (err error) {
		o.Call = call
		o.addrs, err = standing.ParseAddrs(call.Args)
		return err
	}
	c.Run = func(ctx context.Context, _ *command.Call) error { return o.each(ctx, do) }
	return c
}

// errSome says that some addresses were left as they are; the output says which and why.
const errSome = answer.FindingsError("Not all addresses: see above.")

// each calls do with each address, and prints the returned text.
func (o *reserving) each(ctx context.Context, do func(context.Context, netip.Addr) (string, error)) error {
	failed := false
	for _, addr := range o.addrs {
		did, err := do(ctx, addr)
		var refused refusal
		switch {
		case errors.As(err, &refused):
			fmt.Fprintf(o.Out, "%s: %s\n", addr, refused)
			failed = true
		case err != nil:
			return fmt.Errorf("%s: %w", addr, err)
		case o.DryRun:
			fmt.Fprintf(o.Out, "%s: %s (dry run)\n", addr, did)
		default:
			fmt.Fprintf(o.Out, "%s: %s\n", addr, did)
		}
	}
	if failed {
		return errSome
	}
	return nil
}

// refusal says why an address is left as it is.
type refusal string

func (r refusal) Error() string { return string(r) }

func (o *reserving) reserve(ctx context.Context, addr netip.Addr) (string, error) {
	all, err := cluster.Pools(ctx, o.Berth)
	if err != nil {
		return "", err
	}
	snapshot, pool := pools.Compile(all), ""
	if home, ok := snapshot.Home(addr); ok {
		pool = snapshot.Pools()[home].Name
	}
	ip := &v1alpha1.FloatingIP{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NameOf(addr)},
		Spec:       v1alpha1.FloatingIPSpec{Address: addr.String(), Pool: pool, Reserved: true},
	}
	if o.reason != "" {
		ip.Annotations = map[string]string{v1alpha1.AnnotationReason: o.reason}
	}
	_, err = o.Berth.FloatingIPs.Create(ctx, ip, metav1.CreateOptions{DryRun: o.DryRuns(), FieldValidation: metav1.FieldValidationStrict})
	if apierrors.IsAlreadyExists(err) {
		return o.reserved(ctx, ip)
	}
	if err != nil {
		return "", fmt.Errorf("reserve: %w", err)
	}
	if pool == "" {
		return "reserved; no pool has it now", nil
	}
	return "reserved in pool " + pool, nil
}

// reserved handles an address that exists already: it writes the reason if that is
// reserved.
func (o *reserving) reserved(ctx context.Context, wanted *v1alpha1.FloatingIP) (string, error) {
	ip, err := o.Berth.FloatingIPs.Get(ctx, wanted.Name, metav1.GetOptions{})
	if cluster.IsNoSuch(err) {
		return "", refusal("it was freed a moment ago: try again")
	}
	if err != nil {
		return "", fmt.Errorf("get FloatingIP %s: %w", wanted.Name, err)
	}
	if !ip.Spec.Reserved {
		return "", refusal("not reserved: " + whose(ip))
	}
	if o.reason == "" || ip.Annotations[v1alpha1.AnnotationReason] == o.reason {
		return "is reserved already", nil
	}
	metav1.SetMetaDataAnnotation(&ip.ObjectMeta, v1alpha1.AnnotationReason, o.reason)
	if _, err := o.Berth.FloatingIPs.Update(ctx, ip, metav1.UpdateOptions{DryRun: o.DryRuns()}); err != nil {
		return "", fmt.Errorf("write the reason: %w", err)
	}
	return "is reserved already; the reason is written", nil
}

func (o *reserving) unreserve(ctx context.Context, addr netip.Addr) (string, error) {
	ip, err := o.Berth.FloatingIPs.Get(ctx, v1alpha1.NameOf(addr), metav1.GetOptions{})
	switch {
	case cluster.IsNoSuch(err):
		return "is not reserved: nobody has it", nil
	case err != nil:
		return "", fmt.Errorf("get FloatingIP %s: %w", v1alpha1.NameOf(addr), err)
	case !ip.Spec.Reserved:
		return "is not reserved: " + whose(ip), nil
	case ip.Spec.Pod != nil || ip.Spec.Owner != nil:
		// Reserved by hand over a record that somebody has: that stays.
		ip.Spec.Reserved = false
		delete(ip.Annotations, v1alpha1.AnnotationReason)
		_, err = o.Berth.FloatingIPs.Update(ctx, ip, metav1.UpdateOptions{DryRun: o.DryRuns()})
		if err == nil {
			return "not reserved any more: " + whose(ip), nil
		}
	default:
		if err = remove(ctx, o.Berth, ip.Name, string(ip.UID), ip.ResourceVersion, o.DryRuns()); err == nil {
			return "free", nil
		}
	}
	if apierrors.IsConflict(err) {
		return "", refusal("it changed a moment ago: look at it and try again")
	}
	return "", fmt.Errorf("unreserve: %w", err)
}

// remove deletes a FloatingIP if it is as the user saw it.
func remove(ctx context.Context, berth *client.Client, name, uid, version string, dryRun []string) error {
	options := metav1.NewPreconditionDeleteOptions(uid)
	options.Preconditions.ResourceVersion = &version
	options.DryRun = dryRun
	return berth.FloatingIPs.Delete(ctx, name, *options)
}

// whose names the pod or owner that has an address.
func whose(ip *v1alpha1.FloatingIP) string {
	spec := &ip.Spec
	switch {
	case spec.Pod != nil && spec.Owner != nil:
		return fmt.Sprintf("pod %s/%s has it", spec.Owner.Namespace, spec.Pod.Name)
	case spec.Pod != nil:
		return fmt.Sprintf("pod %s has it", spec.Pod.Name)
	case spec.Owner != nil:
		return fmt.Sprintf("it is kept for %s %s/%s", spec.Owner.Kind, spec.Owner.Namespace, spec.Owner.Name)
	case spec.Reserved:
		return "it is reserved"
	case spec.ReleasedAt != nil:
		return "it cools down"
	}
	return "it has a FloatingIP without an owner"
}
