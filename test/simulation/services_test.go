// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	assignerv1 "github.com/berth-dev/berth/ipam/assigner/v1"
	"github.com/berth-dev/berth/test/assigner"
	"github.com/berth-dev/berth/test/serving"
)

// failing is a test that fails without end: it notes what it is told.
type failing struct {
	testing.TB
	said []string
}

func (f *failing) Error(args ...any) { f.said = append(f.said, fmt.Sprint(args...)) }

// broken is a listener that accepts nobody.
type broken struct{ net.Listener }

func (broken) Accept() (net.Conn, error) { return nil, errors.New("too many open files") }

// The test fails when the external assigner dies, and does not wait for its end.
func TestAssignerDies(t *testing.T) {
	ctx, abort := context.WithCancelCause(t.Context())
	f := &failing{TB: t}
	w := &World{T: f, Ctx: ctx, abort: abort, patience: Patience}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.serve("external assigner", serving.Endpoint{}, broken{listener}, &assignerv1.Assigner_ServiceDesc, assigner.NewServer(assigner.NewMemory()))
	const dead = "the external assigner ended: too many open files"
	if err := w.Try(func() error { return errors.New("not yet") }); err == nil || !strings.HasPrefix(err.Error(), dead) {
		t.Errorf("the test waits until %v", err)
	}
	if len(f.said) != 1 || f.said[0] != dead {
		t.Errorf("the test says %q", f.said)
	}
}

// One that ends with its test is none that died.
func TestAssignerEnds(t *testing.T) {
	ctx, abort := context.WithCancelCause(t.Context())
	var f *failing
	t.Run("test", func(t *testing.T) {
		f = &failing{TB: t}
		w := &World{T: f, Ctx: ctx, abort: abort}
		w.Assigner(assigner.NewServer(assigner.NewMemory()))
	})
	if len(f.said) > 0 || ctx.Err() != nil {
		t.Errorf("the test says %q and its context %v", f.said, ctx.Err())
	}
}
