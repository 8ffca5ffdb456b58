// SPDX-License-Identifier: Apache-2.0

// Package election has one replica of a program lead, by a Lease.
package election

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// ErrLeaseLost ends the process: another replica leads now.
var ErrLeaseLost = errors.New("lost the lease")

// Lease is the one for which replicas compete.
type Lease struct {
	Namespace, Name string
	// Duration is how long others wait after the last renewal, RenewDeadline how long the leader tries
	// to renew.
	Duration, RenewDeadline time.Duration
	// Release gives the lease back when the leader ends, while its work may still be ending.
	Release bool
}

// retryPeriod is how often replicas try: Kubernetes' own.
const retryPeriod = 2 * time.Second

// Run calls lead once this process has the lease, with a context that ends with it, and returns
// when ctx ends, or ErrLeaseLost.
func Run(ctx context.Context, api coordinationclient.LeasesGetter, of Lease, lead func(context.Context)) error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("read the host name: %w", err)
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name: of.Name,
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: of.Namespace, Name: of.Name},
			Client:     api,
			LockConfig: resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID())},
		},
		LeaseDuration:   of.Duration,
		RenewDeadline:   of.RenewDeadline,
		RetryPeriod:     retryPeriod,
		ReleaseOnCancel: of.Release,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: lead,
			OnStoppedLeading: func() {},
			OnNewLeader: func(identity string) {
				klog.FromContext(ctx).Info("There is a new leader", "identity", identity)
			},
		},
	})
	if err != nil {
		return fmt.Errorf("set up leader election: %w", err)
	}
	elector.Run(ctx)
	if ctx.Err() == nil {
		return ErrLeaseLost
	}
	return nil
}
