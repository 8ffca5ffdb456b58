// SPDX-License-Identifier: Apache-2.0

package answerer

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/answering"
)

// connection is the segment of a loop, while it is open. Only run uses it.
type connection struct {
	// segment is nil while it is not open. Then the machine's time stands still at stopped: the node
	// answers for no further address, and falls silent for addresses of other nodes.
	segment Segment
	stopped time.Duration
	stop    func()
	// failed gets the error that ended the hearing.
	failed chan error
	// mac and addr are from the segment.
	mac  string
	addr netip.Addr
	// opened is when the segment was opened last; retry is the time of the next try, after a wait of
	// pause.
	opened, retry time.Time
	pause         time.Duration
}

const (
	// firstPause and lastPause are the waits between two tries to open a segment.
	firstPause, lastPause = time.Second, 30 * time.Second
)

// now returns the machine's time.
func (l *loop) now() time.Duration {
	if l.segment == nil {
		return l.stopped
	}
	return time.Since(l.began)
}

// connect opens the segment if it is not open and either a try is due or the link may have changed.
// It opens the segment anew if the link was replaced. It returns the error of a failed try.
func (l *loop) connect(ctx context.Context) error {
	l.mu.Lock()
	changed := l.changed
	l.changed = false
	l.mu.Unlock()
	if l.segment != nil && changed {
		if err := l.segment.Check(); err != nil {
			klog.FromContext(ctx).Info("A link has changed: the node opens its sockets there anew", "link", l.index, "err", err)
			l.disconnect(ctx)
		}
	}
	switch {
	case l.segment != nil && changed:
		l.own()
		return nil
	case l.segment != nil:
		return nil
	case !changed && errors.Is(l.broken, ErrNobodyToAsk):
		return l.broken
	case !changed && time.Now().Before(l.retry):
		return nil
	}
	segment, err := l.a.open(l.index)
	if err != nil {
		l.fails(ctx, err)
		return err
	}
	if l.broken != nil {
		klog.FromContext(ctx).Info("The node asks other nodes on a link again", "link", l.index)
	}
	l.setBroken(nil)
	l.segment, l.mac, l.undefended = segment, "", true
	l.opened = time.Now()
	l.own()
	hearing, stop := context.WithCancel(ctx)
	var reading sync.WaitGroup
	l.failed = make(chan error, 1)
	reading.Go(func() {
		if err := segment.Run(hearing, l.wants, l.heard, l.answered, l.a.claimed); err != nil && hearing.Err() == nil {
			l.failed <- err
		}
	})
	l.stop = func() { stop(); reading.Wait() }
	return nil
}

// own tells the machine the node's MAC and address on the segment, if they have changed.
func (l *loop) own() {
	mac, addr := l.segment.Own()
	if mac.String() == l.mac && addr == l.addr {
		return
	}
	l.mac, l.addr = mac.String(), addr
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inputs = slices.Insert(l.inputs, 0, answering.Input(answering.Own{MAC: l.mac, Address: addr}))
}

// disconnect closes the segment, if it is open.
func (l *loop) disconnect(ctx context.Context) {
	if l.segment == nil {
		return
	}
	if l.stopped = l.now(); time.Since(l.opened) > lastPause {
		l.pause, l.retry = 0, time.Time{}
	}
	l.stop()
	if err := l.segment.Close(); err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot close the sockets on a link", "link", l.index, "err", err)
	}
	l.segment, l.failed = nil, nil
}

// fails notes why the segment is not open, and plans the next try.
func (l *loop) fails(ctx context.Context, err error) {
	switch logger := klog.FromContext(ctx).WithValues("link", l.index); {
	case l.broken != nil && l.broken.Error() == err.Error():
	case errors.Is(err, ErrNobodyToAsk):
		logger.Info("Nobody can be asked for addresses on a link: the node answers without", "err", err)
	default:
		logger.Error(err, "Cannot ask other nodes for addresses on a link, or cannot hear them; will try again; meanwhile the node answers for no further pod there")
	}
	l.setBroken(err)
	l.note(answering.Deaf{})
	l.pause = min(max(firstPause, 2*l.pause), lastPause)
	l.retry = time.Now().Add(l.pause)
}

func (l *loop) setBroken(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.broken = err
}

// drop forgets a loop that has no address of the node.
func (a *Answerer) drop(l *loop) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, at := range a.where {
		if at.link == l.index {
			return false
		}
	}
	delete(a.loops, l.index)
	return true
}

// Failing counts the links on which the node cannot ask other nodes, or hear them.
func (a *Answerer) Failing() (links int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range a.loops {
		l.mu.Lock()
		if l.broken != nil && !errors.Is(l.broken, ErrNobodyToAsk) {
			links++
		}
		l.mu.Unlock()
	}
	return links
}

// answerAll makes the node answer for all addresses of a link on which nobody can be asked.
func (l *loop) answerAll(ctx context.Context) {
	l.mu.Lock()
	inputs := slices.Clone(l.inputs)
	l.saw(inputs)
	l.mu.Unlock()
	for _, in := range inputs {
		switch in := in.(type) {
		case answering.Take:
			l.opens(ctx, in.Address)
		case answering.Carry:
			if !in.Answers {
				l.opens(ctx, in.Address)
			}
		}
	}
}

// awaited is an address for which the node has asked.
type awaited struct {
	until time.Time
	// unseen are the answers that were not passed to the machine yet.
	unseen []answering.Answered
}

const (
	// answerWait is how long after a question its answers count.
	answerWait = time.Second
	// maxAnswers is how many hosts may answer for an address at a time. A single host is enough to
	// keep the node from answering.
	maxAnswers = 16
)

// await makes answers for addresses count from now on.
func (l *loop) await(addrs ...netip.Addr) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for addr, w := range l.awaited {
		if now.After(w.until) {
			delete(l.awaited, addr)
		}
	}
	for _, addr := range addrs {
		if l.awaited[addr] == nil {
			l.awaited[addr] = &awaited{}
		}
		l.awaited[addr].until = now.Add(answerWait)
	}
}

// awaits reports whether to note an answer: anybody may send any number of unasked answers. The
// caller holds mu.
func (l *loop) awaits(a answering.Answered) bool {
	w := l.awaited[a.Address]
	if w == nil || time.Now().After(w.until) || len(w.unseen) == maxAnswers || slices.Contains(w.unseen, a) {
		return false
	}
	w.unseen = append(w.unseen, a)
	return true
}
