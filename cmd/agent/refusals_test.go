// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/berth-dev/berth/cni/netfilter"
)

func TestTellRefusals(t *testing.T) {
	refused := func(by string) error { return fmt.Errorf("not ready: %w: %s", netfilter.ErrRefused, by) }
	answers := []error{nil, refused("a"), refused("a"), refused("b"), errors.New("boom"), refused("b"), nil}
	var told []string
	next := 0
	ready := tellRefusals(func(context.Context) error { next++; return answers[next-1] }, func(err error) { told = append(told, err.Error()) })
	for _, want := range answers {
		if have := ready(t.Context()); !errors.Is(have, want) {
			t.Errorf("ready: %v, want %v", have, want)
		}
	}
	if want := []string{refused("a").Error(), refused("b").Error(), refused("b").Error()}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
}
