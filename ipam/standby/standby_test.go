// SPDX-License-Identifier: Apache-2.0

package standby

import (
	"strings"
	"testing"
	"time"
)

// A panic about one object is an error of its key.
func TestContained(t *testing.T) {
	var object *struct{ name string }
	if err := Contained(func() error { _ = object.name; return nil }); err == nil || !strings.Contains(err.Error(), "nil pointer") || !strings.Contains(err.Error(), "TestContained") {
		t.Errorf("a panic is returned as %v, want its cause and stack", err)
	}
}

// Keys that come before the queue is open are dropped, also those that come later.
func TestQueue(t *testing.T) {
	q := New[string]("test", time.Second, time.Second)
	defer q.ShutDown()
	q.Add("a")
	q.AddAfter("b", 0)
	q.Open()
	if q.Len() != 0 {
		t.Errorf("%d keys are in the queue before it is open", q.Len())
	}
	q.Add("c")
	q.AddAfter("d", 0)
	if q.Len() != 2 {
		t.Errorf("%d keys are in the queue, want 2", q.Len())
	}
}
