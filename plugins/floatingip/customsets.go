// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/customkind"
	"github.com/berth-dev/berth/ipam/fixedset"
)

// customSets finds for how many pods workloads of custom kinds keep addresses. A few workers read
// the workloads while pods wait. A workload that cannot be read counts as having no fixed set, so
// no pod waits for long. Safe for concurrent use.
//
// A pod's author may have invented the pod's owner. Such an owner takes a worker's time. It delays
// the pods whose workloads are queued behind it by at most patience.
type customSets struct {
	reader customReader
	// changed is called after a workload was read.
	changed func(owner ipam.Owner)
	queue   workqueue.TypedRateLimitingInterface[*customSet]

	mu sync.Mutex
	// sets has the sets by the owner's UID in pods. The UID alone does not identify an owner, because
	// a pod's author can write any UID.
	sets map[types.UID]map[setName]*customSet
	// complained has the kinds for which an error was logged.
	complained map[schema.GroupKind]bool
}

// customReader has the methods of a [customkind.Reader] that customSets uses. All but
// Cached do I/O.
type customReader interface {
	Cached(owner *v1alpha1.Owner) (customkind.Workload, customkind.Standing)
	Find(ctx context.Context, owner *v1alpha1.Owner, fresh bool) (w customkind.Workload, live bool, err error)
	Prune(ctx context.Context, needed func() map[schema.GroupKind]bool)
	Wait()
}

// customSet is the state of reading one workload.
type customSet struct {
	owner ipam.Owner
	// asked is when a pod last asked for the set.
	asked time.Time
	// wanted is when the workload was queued to be read; zero: it is not queued.
	wanted time.Time
	// read is when the last reading ended, also a failed one; zero: never.
	read time.Time
	// none says that the last reading found no fixed set, or failed.
	none bool
}

const (
	customReaders = 4
	// readTimeout limits one request; patience limits all attempts to read a workload.
	readTimeout = 5 * time.Second
	patience    = 10 * time.Second
	// askAgain is the interval at which a workload is read again that could not be read or has no
	// fixed set. checkAgain is the interval for workloads whose kind is not watched.
	askAgain   = time.Minute
	checkAgain = 5 * time.Second
	// forgetAfter is longer than the longest time between two attempts of kube-scheduler for a pod.
	forgetAfter = 15 * time.Minute
)

// newCustomSets returns customSets that read with clients for config and watch with
// watching. changed is called after a workload was read, and must not block.
func newCustomSets(config *rest.Config, watching metadata.Interface, changed func(owner ipam.Owner)) (*customSets, error) {
	reading := rest.CopyConfig(config)
	reading.Timeout = readTimeout
	discover, err := discovery.NewDiscoveryClientForConfig(reading)
	if err != nil {
		return nil, fmt.Errorf("create a discovery client: %w", err)
	}
	objects, err := dynamic.NewForConfig(reading)
	if err != nil {
		return nil, fmt.Errorf("create a client for custom kinds: %w", err)
	}
	s := customSetsOf(nil, changed)
	s.reader = customkind.NewReader(customkind.Config{
		Discovery: discover, Objects: objects, Metadata: watching, ScalableOnly: true,
		Changed: func(_ string, workload metav1.Object) { s.noticed(workload) },
		Refused: func(ctx context.Context, err *customkind.ForbiddenError) {
			klog.FromContext(ctx).V(2).Info("The scheduler may not watch a kind of workload; it reads its workloads again at intervals", "reason", err.Error())
		},
	})
	return s, nil
}

func customSetsOf(reader customReader, changed func(owner ipam.Owner)) *customSets {
	return &customSets{
		reader: reader, changed: changed,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[*customSet](100*time.Millisecond, 2*time.Second),
			workqueue.TypedRateLimitingQueueConfig[*customSet]{Name: "floatingip-custom-kinds"}),
		sets: map[types.UID]map[setName]*customSet{}, complained: map[schema.GroupKind]bool{},
	}
}

// beingReadError is the error of a pod that waits until its workload is read.
type beingReadError struct{ owner ipam.Owner }

func (e *beingReadError) Error() string {
	return fmt.Sprintf("%s %q is being read to find how many addresses it keeps", e.owner.Kind, e.owner.Name)
}

// size returns the size of a workload's fixed set, by its strategy. known is false if the workload
// has no fixed set. The error is a *beingReadError: changed will be called when the workload has
// been read.
func (s *customSets) size(owner *ipam.Owner) (size fixedset.Size, known bool, err error) {
	w, standing := s.reader.Cached(recorded(owner))
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	set := s.setOf(owner)
	set.asked = now
	switch {
	case standing == customkind.Current:
		return w.Size, true, nil
	case set.none:
		if now.Sub(set.read) >= askAgain {
			s.want(set, now)
		}
		return fixedset.Size{}, false, nil
	case standing == customkind.Unwatched:
		if now.Sub(set.read) >= checkAgain {
			s.want(set, now)
		}
		return w.Size, true, nil
	}
	s.want(set, now)
	return fixedset.Size{}, false, &beingReadError{*owner}
}

// setName identifies the owner of a set, without the UID.
type setName struct {
	schema.GroupKind
	namespace, name string
}

func (s *customSets) setOf(owner *ipam.Owner) *customSet {
	uid, name := types.UID(owner.UID), setName{groupKindOf(owner), owner.Namespace, owner.Name}
	if s.sets[uid] == nil {
		s.sets[uid] = map[setName]*customSet{}
	}
	if s.sets[uid][name] == nil {
		s.sets[uid][name] = &customSet{owner: *owner}
	}
	return s.sets[uid][name]
}

func recorded(owner *ipam.Owner) *v1alpha1.Owner {
	return &v1alpha1.Owner{
		APIVersion: owner.APIVersion, Kind: owner.Kind, Namespace: owner.Namespace, Name: owner.Name, UID: types.UID(owner.UID),
	}
}

func (s *customSets) want(set *customSet, now time.Time) {
	if set.wanted.IsZero() {
		set.wanted = now
		s.queue.Add(set)
	}
}

// noticed is called when a workload changed. It queues the workload if a pod has asked for it since
// it was last read.
func (s *customSets) noticed(workload metav1.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, set := range s.sets[workload.GetUID()] {
		if !set.asked.Before(set.read) {
			s.want(set, time.Now())
		}
	}
}

// run reads queued workloads until ctx ends. It blocks.
func (s *customSets) run(ctx context.Context) {
	var group sync.WaitGroup
	for range customReaders {
		group.Go(func() {
			for s.next(ctx) {
			}
		})
	}
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(forgetAfter):
			s.purge()
			s.reader.Prune(ctx, s.kinds)
		}
	}
	s.queue.ShutDown()
	group.Wait()
	s.reader.Wait()
}

func (s *customSets) kinds() map[schema.GroupKind]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	kinds := map[schema.GroupKind]bool{}
	for _, sets := range s.sets {
		for name := range sets {
			kinds[name.GroupKind] = true
		}
	}
	return kinds
}

func groupKindOf(owner *ipam.Owner) schema.GroupKind {
	return schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).GroupKind()
}

// purge forgets workloads that no pod asks for any more.
func (s *customSets) purge() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid, sets := range s.sets {
		maps.DeleteFunc(sets, func(_ setName, set *customSet) bool {
			return set.wanted.IsZero() && time.Since(set.asked) >= forgetAfter
		})
		if len(sets) == 0 {
			delete(s.sets, uid)
		}
	}
}

// next reads one workload. It returns false after the queue was shut down.
func (s *customSets) next(ctx context.Context) bool {
	set, shutdown := s.queue.Get()
	if shutdown {
		return false
	}
	defer s.queue.Done(set)
	s.mu.Lock()
	if set.wanted.IsZero() {
		s.mu.Unlock()
		return true // It was read in the meantime.
	}
	owner, since := set.owner, set.wanted
	set.wanted = time.Time{} // A change during the reading must queue the workload again.
	s.mu.Unlock()

	err := errTooLate
	var w customkind.Workload
	if time.Since(since) < patience {
		w, _, err = s.reader.Find(ctx, recorded(&owner), false)
	}
	if ctx.Err() != nil {
		return false
	}
	var forbidden *customkind.ForbiddenError
	if err != nil && !errors.As(err, &forbidden) && time.Since(since) < patience {
		s.mu.Lock()
		set.wanted = since
		s.mu.Unlock()
		s.queue.AddRateLimited(set)
		return true
	}
	s.queue.Forget(set)
	s.complain(ctx, &owner, err)
	s.mu.Lock()
	set.read, set.none = time.Now(), err != nil || !w.Exists || !w.Scaled
	s.mu.Unlock()
	s.changed(owner)
	return true
}

var errTooLate = errors.New("too many other workloads wait to be read")

// complain logs the first error for a kind of workload, and the first success after it.
func (s *customSets) complain(ctx context.Context, owner *ipam.Owner, err error) {
	kind := groupKindOf(owner)
	s.mu.Lock()
	before := s.complained[kind]
	if err != nil {
		s.complained[kind] = true
	} else {
		delete(s.complained, kind)
	}
	s.mu.Unlock()
	logger := klog.FromContext(ctx)
	switch {
	case err != nil && !before:
		logger.Error(err, "Failed to read a workload: its pods do not wait for each other's addresses. Further errors of its kind are not logged", "kind", kind, "namespace", owner.Namespace, "name", owner.Name)
	case err == nil && before:
		logger.Info("A kind of workload can be read again", "kind", kind)
	}
}
