// SPDX-License-Identifier: Apache-2.0

package mover

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam/failover"
)

// leases watches the Leases of kubelets. No informer serves: it does not say when its watch is
// broken, and during that a node's silence says nothing. Safe for concurrent use.
type leases struct {
	api coordinationclient.LeaseInterface
	put func(...failover.Input)

	mu sync.Mutex
	// versions has the newest known resourceVersion of each Lease.
	versions map[string]string
}

const (
	// reconnectWithin is how long a watch may take to go on where it ended before it counts as broken.
	// Renewals of that time are seen late, and none is lost.
	reconnectWithin = 2 * time.Second
	// watchFor is how long a watch lasts at least; at most twice as long. The API server's own
	// default.
	watchFor = 5 * time.Minute
	// listFor limits a list, relistAfter is the time until the next try after a failure.
	listFor, relistAfter = 30 * time.Second, time.Second
)

func newLeases(kube kubernetes.Interface, put func(...failover.Input)) *leases {
	return &leases{api: kube.CoordinationV1().Leases(v1.NamespaceNodeLease), put: put}
}

func (l *leases) ready() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.versions == nil {
		return errors.New("the Leases of nodes are not watched yet")
	}
	return nil
}

func (l *leases) run(ctx context.Context) {
	logger := klog.FromContext(ctx)
	for ctx.Err() == nil {
		err := l.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		logger.Info("The watch of Leases broke: no node is suspected until it is back", "err", err)
		l.put(failover.Broken{})
		pause(ctx, relistAfter)
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// follow lists and watches until that breaks.
func (l *leases) follow(ctx context.Context) error {
	at, err := l.list(ctx)
	if err != nil {
		return err
	}
	for {
		ended, err := l.watch(ctx, at)
		if err != nil {
			return err
		}
		at = ended
	}
}

func (l *leases) list(ctx context.Context) (at string, err error) {
	ctx, cancel := context.WithTimeout(ctx, listFor)
	defer cancel()
	all, err := l.api.List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", fmt.Errorf("list the Leases of nodes: %w", err)
	}
	versions, names := map[string]string{}, make([]string, 0, len(all.Items))
	for i := range all.Items {
		versions[all.Items[i].Name] = all.Items[i].ResourceVersion
		names = append(names, all.Items[i].Name)
	}
	l.mu.Lock()
	l.versions = versions
	l.mu.Unlock()
	l.put(failover.Synced{Nodes: names})
	return all.ResourceVersion, nil
}

// watch watches from a version on until the API server ends the watch, and returns where the next
// one begins.
func (l *leases) watch(ctx context.Context, at string) (ended string, err error) {
	seconds := int64((watchFor + rand.N(watchFor)).Seconds())
	options := metav1.ListOptions{ResourceVersion: at, TimeoutSeconds: &seconds, AllowWatchBookmarks: true}
	living, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := l.open(living, cancel, options)
	if err != nil {
		return "", err
	}
	defer stream.Stop()
	for {
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case e, open := <-stream.ResultChan():
			if !open {
				return at, nil
			}
			if e.Type == watch.Error {
				return "", fmt.Errorf("watch the Leases of nodes: %w", apierrors.FromObject(e.Object))
			}
			lease, ok := e.Object.(*coordinationv1.Lease)
			if !ok {
				continue
			}
			at = lease.ResourceVersion
			if e.Type == watch.Added || e.Type == watch.Modified {
				if l.renewal(lease.Name, lease.ResourceVersion) {
					l.put(failover.Renewed{Node: lease.Name})
				}
			}
		}
	}
}

// open begins a watch that lives as long as ctx, in time or not at all: then it ends ctx.
func (l *leases) open(ctx context.Context, cancel context.CancelFunc, options metav1.ListOptions) (watch.Interface, error) {
	late := time.AfterFunc(reconnectWithin, cancel)
	defer late.Stop()
	for {
		stream, err := l.api.Watch(ctx, options)
		if err == nil {
			if late.Stop() {
				return stream, nil
			}
			stream.Stop()
			err = fmt.Errorf("it took more than %s", reconnectWithin)
		}
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || ctx.Err() != nil {
			return nil, fmt.Errorf("watch the Leases of nodes: %w", err)
		}
		pause(ctx, 100*time.Millisecond)
	}
}

// renewal notes a version of a Lease, and returns whether it is newer than the ones before. A watch
// that is late delivers versions that were read at the API server already.
func (l *leases) renewal(name, version string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	known, ok := l.versions[name]
	if ok && known == version {
		return false
	}
	if order, err := resourceversion.CompareResourceVersion(version, known); ok && err == nil && order <= 0 {
		return false
	}
	l.versions[name] = version
	return true
}

// look reads the Lease of a node at the API server, and returns whether it was renewed since that
// was last known.
func (l *leases) look(ctx context.Context, name string) (renewed bool, err error) {
	lease, err := l.api.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("get the Lease of node %s: %w", name, err)
	}
	return l.renewal(name, lease.ResourceVersion), nil
}
