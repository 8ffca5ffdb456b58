// SPDX-License-Identifier: Apache-2.0

package fencer_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	client "github.com/berth-dev/berth/ipam/fencer"
	fencerv1 "github.com/berth-dev/berth/ipam/fencer/v1"
	"github.com/berth-dev/berth/ipam/remote"
	"github.com/berth-dev/berth/test/fencer"
	"github.com/berth-dev/berth/test/serving"
)

// connected returns Berth's client of a reference server.
func connected(t *testing.T, machines fencer.Machines) *client.Client {
	t.Helper()
	endpoint := serving.Endpoint{Listen: "unix://" + filepath.Join(t.TempDir(), "f.sock")}
	ctx, cancel := context.WithCancel(context.Background())
	listener, err := endpoint.Listener(ctx)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		done <- endpoint.Serve(ctx, listener, &fencerv1.Fencer_ServiceDesc, fencer.NewServer(machines))
	}()
	c, err := client.New(remote.Options{Address: endpoint.Listen}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return c
}

// Berth's client and the reference server agree on the protocol.
func TestClient(t *testing.T) {
	machines := fencer.NewMemory("node1", "node2")
	c := connected(t, machines)
	for range 2 { // It is idempotent.
		if err := c.Fence(t.Context(), client.Machine{Name: "node1", UID: "u"}); err != nil {
			t.Fatal(err)
		}
	}
	if told := machines.Told(); len(told) != 1 || told[0].GetUid() != "u" || machines.HasPower("node1") || !machines.HasPower("node2") {
		t.Errorf("told %v", told)
	}
	// Somebody switches it on again.
	machines.Switch("node1", true)
	if err := c.Fence(t.Context(), client.Machine{Name: "node1", UID: "u"}); err != nil || machines.HasPower("node1") {
		t.Errorf("switched on again: %v", err)
	}
	machines.Before(func(context.Context, *fencerv1.FenceRequest) error {
		return status.Error(codes.PermissionDenied, "the BMC refuses the password")
	})
	for name, want := range map[string]string{"node2": "the BMC refuses the password (PermissionDenied)", "node3": "there is no machine of node node3 (NotFound)", "": "(InvalidArgument)"} {
		if err := c.Fence(t.Context(), client.Machine{Name: name}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
}

// slow are machines that lose their power a while after they were told to.
type slow struct {
	*fencer.Memory
	takes time.Duration
}

func (s slow) PowerOff(_ context.Context, request *fencerv1.FenceRequest) error {
	time.AfterFunc(s.takes, func() { s.Switch(request.GetName(), false) })
	return nil
}

// That the machine was told to lose its power is not enough.
func TestIsOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		machines := slow{fencer.NewMemory("node1"), 20 * time.Second}
		s := fencer.NewServer(machines)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err := s.Fence(ctx, &fencerv1.FenceRequest{Name: "node1"}); status.Code(err) != codes.DeadlineExceeded || !strings.Contains(err.Error(), "still has it") {
			t.Errorf("after 5 s: %v", err)
		}
		if _, err := s.Fence(t.Context(), &fencerv1.FenceRequest{Name: "node1"}); err != nil || machines.HasPower("node1") {
			t.Errorf("%v, power: %t", err, machines.HasPower("node1"))
		}
		time.Sleep(time.Minute) //nolint:forbidigo // the clock is the test's
	})
}

// A request that its caller gave up while another one was worked on powers nothing off, and the
// other one does.
func TestGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		machines := fencer.NewMemory("node1")
		machines.Before(func(context.Context, *fencerv1.FenceRequest) error {
			time.Sleep(10 * time.Second) //nolint:forbidigo // the clock is the test's
			return errors.New("the BMC is busy")
		})
		s, request := fencer.NewServer(machines), &fencerv1.FenceRequest{Name: "node1"}
		first := make(chan error, 1)
		go func() {
			_, err := s.Fence(t.Context(), request)
			first <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		second := make(chan error, 1)
		go func() {
			_, err := s.Fence(ctx, request)
			second <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-second; status.Code(err) != codes.Canceled {
			t.Errorf("the second: %v", err)
		}
		if err := <-first; err == nil {
			t.Error("the first succeeded")
		}
		time.Sleep(time.Minute) //nolint:forbidigo // the clock is the test's
		if len(machines.Told()) != 1 || !machines.HasPower("node1") {
			t.Errorf("told %v", machines.Told())
		}
	})
}
