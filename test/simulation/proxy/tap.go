// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
)

// Point is where a tap stops a request.
type Point int

const (
	BeforeRequest Point = iota // the API server knows nothing of it
	BeforeAnswer               // the API server is done with it
)

func (p Point) String() string {
	return [...]string{"before it reached the API server", "before it was answered"}[p]
}

// Tap stops the next request that matches. It does so once.
type Tap struct {
	match   func(*http.Request) bool
	point   Point
	reached chan struct{}
	verdict chan bool
}

// Tap makes a tap.
func (p *Proxy) Tap(match func(*http.Request) bool, at Point) *Tap {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := &Tap{match: match, point: at, reached: make(chan struct{}), verdict: make(chan bool, 1)}
	p.taps = append(p.taps, t)
	return t
}

// tapped takes the tap that a request runs into.
func (p *Proxy) tapped(request *http.Request, at Point) *Tap {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, t := range p.taps {
		if t.point == at && t.match(request) {
			p.taps = slices.Delete(p.taps, i, i+1)
			return t
		}
	}
	return nil
}

// hold says whether the request may go on.
func (t *Tap) hold(ctx context.Context) bool {
	close(t.reached)
	select {
	case ok := <-t.verdict:
		return ok
	case <-ctx.Done():
		return false
	}
}

// Wait blocks until a request is stopped or ctx ends.
func (t *Tap) Wait(ctx context.Context) error {
	select {
	case <-t.reached:
		return nil
	case <-ctx.Done():
		return errors.New("no request came to the tap")
	}
}

// Pass lets the stopped request go on.
func (t *Tap) Pass() { t.verdict <- true }

// Drop cuts the connection of the stopped request.
func (t *Tap) Drop() { t.verdict <- false }

// FloatingIPs is the path of the collection.
const FloatingIPs = "/apis/berth.dev/v1alpha1/floatingips"

// IsClaim matches requests that claim an address.
func IsClaim(r *http.Request) bool { return r.Method == http.MethodPost && r.URL.Path == FloatingIPs }

// IsIPPatch matches changes of a FloatingIP.
func IsIPPatch(r *http.Request) bool {
	return r.Method == http.MethodPatch && strings.HasPrefix(r.URL.Path, FloatingIPs+"/")
}

// IsIPDelete matches deletions of a FloatingIP.
func IsIPDelete(r *http.Request) bool {
	return r.Method == http.MethodDelete && strings.HasPrefix(r.URL.Path, FloatingIPs+"/")
}

// IsBinding matches Bindings of pods.
func IsBinding(r *http.Request) bool {
	return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/binding")
}
