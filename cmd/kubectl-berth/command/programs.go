// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/ipam/agentport"
)

func (c *Call) Ports() *agentport.Ports { return &agentport.Ports{Kube: c.Kube, Namespace: c.System} }

// Programs returns a program's pods, of one node or, if that is empty, all, newest first. Blocking.
func (c *Call) Programs(ctx context.Context, selector, node string) ([]*v1.Pod, error) {
	options := metav1.ListOptions{LabelSelector: selector}
	if node != "" {
		options.FieldSelector = "spec.nodeName=" + node
	}
	list, err := c.Kube.CoreV1().Pods(c.System).List(ctx, options)
	if err != nil {
		_, name, _ := strings.Cut(selector, "=")
		return nil, fmt.Errorf("list the pods of %s: %w", name, err)
	}
	var pods []*v1.Pod
	for i := range list.Items {
		if pod := &list.Items[i]; pod.DeletionTimestamp == nil && (node == "" || pod.Spec.NodeName == node) {
			pods = append(pods, pod)
		}
	}
	slices.SortStableFunc(pods, func(a, b *v1.Pod) int { return b.CreationTimestamp.Compare(a.CreationTimestamp.Time) })
	return pods, nil
}

type Port interface {
	Ask(ctx context.Context, q agentport.Question) ([]byte, error)
}

func AskJSON[A any](ctx context.Context, port Port, q agentport.Question) (*A, error) {
	text, err := port.Ask(ctx, q)
	if err != nil {
		return nil, err
	}
	said := new(A)
	if err := json.Unmarshal(text, said); err != nil {
		return nil, fmt.Errorf("read the answer of %s in pod %s: %w", q.Of, q.Pod.Name, err)
	}
	return said, nil
}

const parallel = 8

// Ask calls ask with each item, several at a time, and what that returns one at a time. Blocking.
func Ask[T any](items []T, ask func(T) (note func())) {
	var (
		mu    sync.Mutex
		group sync.WaitGroup
	)
	tokens := make(chan struct{}, parallel)
	for _, item := range items {
		group.Go(func() {
			tokens <- struct{}{}
			defer func() { <-tokens }()
			note := ask(item)
			mu.Lock()
			defer mu.Unlock()
			note()
		})
	}
	group.Wait()
}

// AskPods asks the programs in pods, several at a time, and hands each answer to add, one at a
// time. Of those that do not answer it returns the open question with the name of their node, which
// the question has a place for, and why. Blocking.
func AskPods[A any](pods []*v1.Pod, question string, ask func(*v1.Pod) (A, error), add func(pod *v1.Pod, answer A)) (unknown []string) {
	Ask(pods, func(pod *v1.Pod) func() {
		answer, err := ask(pod)
		return func() {
			if err != nil {
				unknown = append(unknown, fmt.Sprintf(question+": %s", pod.Spec.NodeName, failure.Explain(err)))
				return
			}
			add(pod, answer)
		}
	})
	slices.Sort(unknown)
	return unknown
}

// Progress tells on stderr, every few seconds, what a long command does. Safe for concurrent use.
type Progress struct {
	out io.Writer

	mu    sync.Mutex
	doing func() string
}

const pause = 2 * time.Second

// Progress begins to print; end ends it.
func (c *Call) Progress() (p *Progress, end func()) {
	p = &Progress{out: c.ErrOut, doing: func() string { return "" }}
	stop := make(chan struct{})
	var lines sync.WaitGroup
	lines.Go(func() {
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				p.mu.Lock()
				if text := p.doing(); text != "" {
					fmt.Fprintln(p.out, text)
				}
				p.mu.Unlock()
			}
		}
	})
	return p, func() { close(stop); lines.Wait() }
}

// Doing sets what is printed from now on.
func (p *Progress) Doing(text func() string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.doing = text
}

func (p *Progress) Say(format string, args ...any) {
	p.Doing(func() string { return "" })
	fmt.Fprintf(p.out, format+"\n", args...)
}

// Count sets the number of finished items, of all if that is known.
func (p *Progress) Count(what string, done, all int) {
	p.Doing(func() string {
		if all == 0 {
			return fmt.Sprintf("%s: %d", what, done)
		}
		return fmt.Sprintf("%s: %d of %d", what, done, all)
	})
}
