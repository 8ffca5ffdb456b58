// SPDX-License-Identifier: Apache-2.0

package address

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/cluster"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/pools"
)

const whoLong = `Says who has an address: pod, node, owner and since when. If nobody has it, says of
which pool it is and why pods get it or not.

IPv6 may be written in any spelling. Users who may not read FloatingIPs learn of the
addresses of the pods that they may read, in the namespace of -n.`

const whoExamples = `  # Who has this address?
  kubectl berth who 10.0.70.12

  # Several, and the names of the objects
  kubectl berth who 10.0.70.12 2001:DB8:0::7 -o name

  # Follow it
  kubectl berth who 10.0.70.12 -w`

// NewWho returns the command who.
func NewWho(of *cluster.Cluster, streams genericiooptions.IOStreams) *cobra.Command {
	var wanted []netip.Addr
	return command.Command{
		Use: "who ADDRESS...", Short: "Says who has an address, or why nobody has", Long: whoLong, Example: whoExamples,
		Args: cobra.MinimumNArgs(1), Complete: of.CompleteAddresses, Namespaced: true,
		Watch: "Print another line whenever the one address changes.",
		Prepare: func(call *command.Call) (err error) {
			if wanted, err = standing.ParseAddrs(call.Args); err == nil && call.Watching && len(wanted) > 1 {
				err = errors.New("--watch follows one address: give one")
			}
			return err
		},
		Answer: func(ctx context.Context, call *command.Call) (*answer.Answer, error) {
			look := &look{Call: call}
			addresses := make([]standing.Address, 0, len(wanted))
			for _, addr := range wanted {
				found, err := look.who(ctx, addr)
				if err != nil {
					return nil, err
				}
				addresses = append(addresses, found)
			}
			look.follow(ctx, wanted[0])
			return answerOf(addresses, time.Now()), nil
		},
	}.New(of, streams)
}

// follow has the address printed again whenever its FloatingIP changes.
func (l *look) follow(ctx context.Context, addr netip.Addr) {
	l.Follow(l.version, func(options metav1.ListOptions) (watch.Interface, error) {
		options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, v1alpha1.NameOf(addr)).String()
		return l.Berth.FloatingIPs.Watch(ctx, options)
	}, func(event watch.Event) (*answer.Answer, error) {
		ip, ok := event.Object.(*v1alpha1.FloatingIP)
		if !ok {
			return nil, nil
		}
		var found standing.Address
		var err error
		if event.Type == watch.Deleted {
			l.pools = nil // as they are now
			found, err = l.nobody(ctx, addr)
		} else {
			found, err = l.of(ctx, ip)
		}
		return answerOf([]standing.Address{found}, time.Now()), err
	})
}

// look looks up addresses. It asks for the pools once, and only if it needs them.
type look struct {
	*command.Call
	pools []*v1alpha1.IPPool
	// version of the last FloatingIP that was read.
	version string
}

// who makes one request if the address has a FloatingIP.
func (l *look) who(ctx context.Context, addr netip.Addr) (standing.Address, error) {
	ip, err := l.Berth.FloatingIPs.Get(ctx, v1alpha1.NameOf(addr), metav1.GetOptions{})
	switch {
	case failure.IsNoSuch(err):
		return l.nobody(ctx, addr)
	case failure.Forbidden(err) != "":
		return l.ofOwnPods(ctx, addr, err)
	case err != nil:
		return standing.Address{}, fmt.Errorf("get the FloatingIP of %s: %w", addr, err)
	}
	l.version = ip.ResourceVersion
	return l.of(ctx, ip)
}

// of adds to a FloatingIP when its cooldown ends.
func (l *look) of(ctx context.Context, ip *v1alpha1.FloatingIP) (standing.Address, error) {
	found := standing.AddressOf(ip)
	if found.NeedsPools() && ip.Spec.ReleasedAt != nil {
		if err := l.readPools(ctx); err != nil {
			return standing.Address{}, err
		}
	}
	found.Cool(ip, l.pools, time.Now())
	return found, nil
}

func (l *look) nobody(ctx context.Context, addr netip.Addr) (standing.Address, error) {
	if err := l.readPools(ctx); err != nil {
		return standing.Address{}, err
	}
	return standing.AddressOfNobody(addr, l.pools, pools.Compile(l.pools)), nil
}

func (l *look) readPools(ctx context.Context) error {
	if l.pools != nil {
		return nil
	}
	pools, err := cluster.Pools(ctx, l.Berth)
	l.pools = pools
	return err
}

// ofOwnPods is for users who may not read FloatingIPs: it looks at the pods that they may
// read. The annotation proves nothing: the user of a pod may have changed it.
func (l *look) ofOwnPods(ctx context.Context, addr netip.Addr, missing error) (standing.Address, error) {
	missing = fmt.Errorf("get the FloatingIP of %s: %w", addr, missing)
	pods, err := l.Kube.CoreV1().Pods(l.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return standing.Address{}, missing // it gives the user the cause
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if names, _ := podrequest.NamesOf(pod); runsWith(pod) && slices.Contains(names, v1alpha1.NameOf(addr)) {
			return ofPod(pod, addr), nil
		}
	}
	return standing.Address{}, fmt.Errorf("no pod that you may read in namespace %s has %s, and for others: %w", l.Namespace, addr, missing)
}
