// SPDX-License-Identifier: Apache-2.0

// Package circulation has the commands that take addresses out of circulation and put them
// back, reserve, unreserve and release, and move-claim, which gives them to another
// claim. Each write is limited to the state of the object that
// the user saw, so nothing is taken from a pod that got the address meanwhile.
package circulation

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/circulation/freeing"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/inventory/netbox"
	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/cmd/kubectl-berth/target"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
)

const reserveLong = `Takes addresses out of circulation: no pod gets them until "kubectl berth unreserve".

An address that a pod or a workload has is not reserved: the answer says who has it. Release
it first, or end the pod. The reason is in the annotation berth.dev/reason of the FloatingIP.

-f reserves the addresses that an inventory says are taken, whatever their status, as far as pools give them. It reads
what NetBox exports (IP addresses, "Export", "All Data"), pages of NetBox's API for IP addresses or ranges (JSON), or lines
with an address, FIRST-LAST or a CIDR. Addresses that the inventory has from "kubectl berth export -o netbox" are left out.
The reason is "in the inventory", with --reason NAME "in the inventory: NAME". Reserving a file again changes nothing.
With --prune, reserved addresses with exactly this reason which the files lack now are free again; others never.`

const reserveExamples = `  # The router's second address, until the network team is done
  kubectl berth reserve 10.0.70.12 --reason "VRRP, ticket 4711"

  # Which of them could not be reserved? Changes nothing
  kubectl berth reserve 10.0.70.12 10.0.70.13 --dry-run

  # What would the inventory take out of circulation, and put back? Then do it
  kubectl berth reserve -f addresses.csv --prune --dry-run
  kubectl berth reserve -f addresses.csv --prune`

type reserving struct {
	*command.Call
	addrs  []netip.Addr
	reason string
	// files are those of reserve -f, and entries the addresses in them.
	files   []string
	entries []netbox.Entry
	prune   bool

	// all are the pools, and pools what they compile to; nil: not read yet.
	all   []*v1alpha1.IPPool
	pools *pools.Snapshot
	// refused says that some address was left as it is, against the user's wish.
	refused bool
}

// NewReserve returns the command reserve.
func NewReserve() command.Command {
	o := &reserving{}
	return command.Command{
		Use: "reserve ADDRESS... | -f FILE", Short: "Takes addresses out of circulation", Long: reserveLong, Example: reserveExamples,
		Args: command.AtLeast(0), Names: target.Addresses, Writes: true, Found: "some are not reserved: somebody has them, or no pool gives them",
		Flags: func(flags *pflag.FlagSet) {
			flags.StringVar(&o.reason, "reason", "", "Why, for a person who finds the address reserved later. With -f the name of the inventory.")
			flags.StringArrayVarP(&o.files, "filename", "f", nil, "File with the addresses that an inventory says are taken; - is stdin. Can be repeated.")
			flags.BoolVar(&o.prune, "prune", false, "With -f: put addresses back that -f reserved, with the same --reason, and that the files lack now.")
		},
		Prepare: o.prepare,
		Run: func(ctx context.Context, _ *command.Call) error {
			if len(o.files) > 0 {
				return o.reserveTaken(ctx)
			}
			return o.each(ctx, o.reserve)
		},
	}
}

func (o *reserving) prepare(call *command.Call) (err error) {
	o.Call = call
	switch {
	case (len(call.Args) > 0) == (len(o.files) > 0):
		return errors.New("name addresses, or give -f: exactly one of the two")
	case o.prune && len(o.files) == 0:
		return errors.New("--prune is for -f")
	case len(o.files) > 0:
		o.reason = netbox.Reason(o.reason)
		o.entries, err = readTaken(call, o.files)
		return err
	}
	o.addrs, err = call.Addresses()
	return err
}

const unreserveLong = `Puts reserved addresses back into circulation: pods get them again.`

// NewUnreserve returns the command unreserve.
func NewUnreserve() command.Command {
	o := &reserving{}
	return command.Command{
		Use: "unreserve ADDRESS...", Short: "Puts reserved addresses back into circulation", Long: unreserveLong,
		Example: "  kubectl berth unreserve 10.0.70.12", Names: target.Addresses, Args: command.AtLeast(1),
		Writes: true, Found: "some are still reserved, because they changed meanwhile, or no pool gives them",
		Prepare: func(call *command.Call) (err error) {
			o.Call = call
			o.addrs, err = call.Addresses()
			return err
		},
		Run: func(ctx context.Context, _ *command.Call) error { return o.each(ctx, o.unreserve) },
	}
}

// errSome says that some addresses were left as they are; the output says which and why.
const errSome = answer.FindingsError("Not all addresses: see above.")

// each calls do with each address, and prints the returned text.
func (o *reserving) each(ctx context.Context, do func(context.Context, netip.Addr) (string, error)) error {
	for _, addr := range o.addrs {
		did, err := do(ctx, addr)
		if err := o.say(addr, did, err); err != nil {
			return err
		}
	}
	return o.outcome()
}

// say prints the outcome for an address or a range. It returns an error that is no refusal.
func (o *reserving) say(of fmt.Stringer, did string, err error) error {
	var refused refusal
	switch {
	case errors.As(err, &refused):
		fmt.Fprintf(o.Out, "%s: %s\n", of, refused)
		o.refused = true
	case err != nil:
		return fmt.Errorf("%s: %w", of, err)
	case o.DryRun:
		fmt.Fprintf(o.Out, "%s: %s (dry run)\n", of, did)
	default:
		fmt.Fprintf(o.Out, "%s: %s\n", of, did)
	}
	return nil
}

func (o *reserving) outcome() error {
	if o.refused {
		return errSome
	}
	return nil
}

// refusal says why an address is left as it is.
type refusal string

func (r refusal) Error() string { return string(r) }

const (
	errChanged = refusal("it changed a moment ago: look at it and try again")
	errFreed   = refusal("it was freed a moment ago: try again")
)

// alreadyReserved says that nothing is to be done.
const alreadyReserved = "is reserved already"

func (o *reserving) reserve(ctx context.Context, addr netip.Addr) (string, error) {
	if err := o.readPools(ctx); err != nil {
		return "", err
	}
	home, ok := o.pools.Home(addr)
	if !ok {
		return o.homeless(ctx, addr)
	}
	pool := o.pools.Pools()[home].Name
	ip := &v1alpha1.FloatingIP{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NameOf(addr)},
		Spec:       v1alpha1.FloatingIPSpec{Address: addr.String(), Pool: pool, Reserved: true},
	}
	if o.reason != "" {
		ip.Annotations = map[string]string{v1alpha1.AnnotationReason: o.reason}
	}
	_, err := o.Berth.FloatingIPs.Create(ctx, ip, metav1.CreateOptions{DryRun: o.DryRuns(), FieldValidation: metav1.FieldValidationStrict})
	if apierrors.IsAlreadyExists(err) {
		return o.reserved(ctx, addr)
	}
	if err != nil {
		return "", fmt.Errorf("reserve: %w", err)
	}
	return "reserved in pool " + pool, nil
}

// homeless refuses an address that no pool gives, unless there is a record of it.
func (o *reserving) homeless(ctx context.Context, addr netip.Addr) (string, error) {
	did, err := o.reserved(ctx, addr)
	if errors.Is(err, errFreed) {
		err = refusal("not reserved: " + standing.OfNobody(addr, o.all, o.pools).Because)
	}
	return did, err
}

func (o *reserving) readPools(ctx context.Context) error {
	if o.pools != nil {
		return nil
	}
	var err error
	if o.all, err = o.Pools(ctx); err != nil {
		return err
	}
	o.pools = pools.Compile(o.all)
	return nil
}

// reserved handles an address that exists already: it writes the reason if that is
// reserved. An inventory's replaces no other: --prune would undo a reservation that it did not make.
func (o *reserving) reserved(ctx context.Context, addr netip.Addr) (string, error) {
	ip, err := o.FloatingIP(ctx, addr)
	if err != nil {
		return "", err
	}
	if ip == nil {
		return "", errFreed
	}
	if !ip.Spec.Reserved {
		return "", refusal("not reserved: " + freeing.Whose(ip))
	}
	if o.reason == "" || ip.Annotations[v1alpha1.AnnotationReason] == o.reason || len(o.files) > 0 {
		return alreadyReserved, nil
	}
	metav1.SetMetaDataAnnotation(&ip.ObjectMeta, v1alpha1.AnnotationReason, o.reason)
	if _, err := o.Berth.FloatingIPs.Update(ctx, ip, metav1.UpdateOptions{DryRun: o.DryRuns()}); err != nil {
		return "", fmt.Errorf("write the reason: %w", err)
	}
	return "is reserved already; the reason is written", nil
}

func (o *reserving) unreserve(ctx context.Context, addr netip.Addr) (string, error) {
	ip, err := o.FloatingIP(ctx, addr)
	switch {
	case err != nil:
		return "", err
	case ip == nil:
		if err := o.readPools(ctx); err != nil {
			return "", err
		}
		if _, given := o.pools.Home(addr); !given {
			return "", refusal("is not reserved: " + standing.OfNobody(addr, o.all, o.pools).Because)
		}
		return "is not reserved: nobody has it", nil
	case !ip.Spec.Reserved:
		return "is not reserved: " + freeing.Whose(ip), nil
	case o.prune && ip.Annotations[v1alpha1.AnnotationReason] != o.reason:
		return "", errChanged
	case ip.Spec.Pod != nil || ip.Spec.Owner != nil:
		// Reserved by hand over a record that somebody has: that stays.
		ip.Spec.Reserved = false
		delete(ip.Annotations, v1alpha1.AnnotationReason)
		_, err = o.Berth.FloatingIPs.Update(ctx, ip, metav1.UpdateOptions{DryRun: o.DryRuns()})
		if err == nil {
			return "not reserved any more: " + freeing.Whose(ip), nil
		}
	default:
		if err = freeing.Remove(ctx, o.Berth.FloatingIPs, ip.Name, string(ip.UID), ip.ResourceVersion, o.DryRuns()); err == nil {
			return "free", nil
		}
	}
	if apierrors.IsConflict(err) {
		return "", errChanged
	}
	return "", fmt.Errorf("unreserve: %w", err)
}
