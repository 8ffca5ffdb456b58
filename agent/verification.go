// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
)

const (
	// verifyParallel limits the questions to the API at a time.
	verifyParallel = 8
	// verifyPatience limits the question about all records, and the questions about one.
	verifyPatience = 10 * time.Second
)

// suspects are the records whose addresses may be another pod's by now: the node could
// not follow the API. Methods are safe in parallel.
type suspects struct{ keys sync.Map }

func (s *suspects) add(key state.Key) { s.keys.Store(key, true) }

// take removes and returns all, before the questions about them: a suspicion that comes meanwhile
// stays.
func (s *suspects) take() (keys []state.Key) {
	s.keys.Range(func(key, _ any) bool {
		s.keys.Delete(key)
		keys = append(keys, key.(state.Key))
		return true
	})
	return keys
}

// Suspect makes Verify ask about every floating IP and host port that this node carries. Its caller
// calls it after a start and when the API could not be reached.
func (a *Agent) Suspect() {
	for _, record := range a.Store.List() {
		if hasScarce(record) && record.Phase != state.Withdrawn {
			a.suspects.add(record.Key())
		}
	}
}

// Verify asks the API about the suspects, withdraws the addresses of other pods and
// repairs the node's side of the rest. It asks about all with one question, and again about
// those that seem to have lost something, each by itself. It returns an error while suspects are
// left.
func (a *Agent) Verify(ctx context.Context) error {
	keys := a.suspects.take()
	if len(keys) == 0 {
		return nil
	}
	standing, err := a.standing(ctx)
	if err != nil {
		for _, key := range keys {
			a.suspects.add(key)
		}
		return fmt.Errorf("%w: %w", errNoAnswer, err)
	}
	var errs []error
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(verifyParallel)
	for _, key := range keys {
		group.Go(func() error {
			if err := a.verifyOne(ctx, key, standing); err != nil {
				a.suspects.add(key)
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
			return nil
		})
	}
	_ = group.Wait()
	return errors.Join(errs...)
}

func (a *Agent) standing(ctx context.Context) (podinfo.Standing, error) {
	ctx, cancel := context.WithTimeout(ctx, verifyPatience)
	defer cancel()
	return a.Pods.Standing(ctx)
}

// errNoAnswer is returned where the API did not name the pod that holds an address.
var errNoAnswer = errors.New("cannot ask the API server")

// errNotCompared stands for what a record may lack.
var errNotCompared = errors.New("not compared with the kernel")

// verifyOne decides about one record.
func (a *Agent) verifyOne(ctx context.Context, key state.Key, holds podinfo.Standing) error {
	ctx, cancel := context.WithTimeout(ctx, verifyPatience)
	defer cancel()
	record := a.Store.Get(key)
	if record == nil || record.Phase == state.Withdrawn {
		return nil
	}
	if !holds(record.Pod, record.Addresses()) {
		reason, err := a.lostWhy(ctx, record)
		if err != nil {
			return fmt.Errorf("%w: %w", errNoAnswer, err)
		}
		if reason != "" {
			return a.withdraw(ctx, record, reason)
		}
	}
	missing, err := a.askAgain(record, errNotCompared)
	if err == nil && missing != nil {
		err = a.setupAgain(ctx, record, a.isAsked)
	}
	if err != nil {
		// It has nothing to do with the API, and is tried again without it.
		a.reconciler.CheckSoon(key)
		klog.FromContext(ctx).Error(err, "Cannot repair the network of a pod", "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name), "containerID", record.ContainerID)
	}
	return nil
}

// lostWhy returns the reason why the record's pod lost its addresses, or an empty
// string while it holds them.
func (a *Agent) lostWhy(ctx context.Context, record *state.Container) (string, error) {
	for _, addr := range record.Addresses() {
		err := a.Pods.Holds(ctx, record.Pod, addr)
		if errors.Is(err, podinfo.ErrNotHolder) {
			return err.Error(), nil
		}
		if err != nil {
			return "", err
		}
	}
	alive, err := a.Pods.Alive(ctx, record.Pod)
	if err != nil {
		return "", err
	}
	if !alive {
		return podGone, nil
	}
	return "", nil
}
