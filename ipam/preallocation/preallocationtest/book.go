// SPDX-License-Identifier: Apache-2.0

// Package preallocationtest has the book of addresses for tests of owners that preallocate.
package preallocationtest

import (
	"context"
	"sync"

	"github.com/berth-dev/berth/ipam"
)

// Book is the book of addresses, which gives none while it is to fail, and counts the attempts. Safe for concurrent use.
type Book struct {
	*ipam.IPAM

	mu       sync.Mutex
	fails    error
	attempts int
}

// Preallocate implements preallocation.Preallocator.
func (b *Book) Preallocate(ctx context.Context, request ipam.Request, count int, confirm func(context.Context) error) (made int, err error) {
	b.mu.Lock()
	b.attempts++
	err = b.fails
	b.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return b.IPAM.Preallocate(ctx, request, count, confirm)
}

// Fail lets the book fail from now on, or not.
func (b *Book) Fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fails = err
}

// Tried returns how often the book was asked since its last call.
func (b *Book) Tried() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.attempts
	b.attempts = 0
	return n
}
