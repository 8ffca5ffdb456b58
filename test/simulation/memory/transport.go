// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"sync"
)

// Transport carries requests to a handler of this process, as a connection does: an answer
// arrives piece by piece, and who closes it ends the request.
func Transport(handler http.Handler) http.RoundTripper { return transport{handler} }

type transport struct{ handler http.Handler }

func (t transport) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(request.Context())
	a := &answer{header: http.Header{}, begun: make(chan struct{}), more: make(chan struct{}, 1), ctx: ctx, cancel: cancel}
	asked := request.Clone(ctx)
	if asked.Body == nil {
		asked.Body = http.NoBody
	}
	asked.RequestURI = request.URL.RequestURI()
	asked.RemoteAddr = "192.0.2.1:1"
	go func() {
		defer a.end(io.ErrUnexpectedEOF)
		defer func() {
			if cause := recover(); cause != nil && cause != http.ErrAbortHandler { //nolint:errorlint // net/http compares so, too.
				panic(cause)
			}
		}()
		t.handler.ServeHTTP(a, asked)
		a.end(io.EOF)
	}()
	select {
	case <-a.begun:
	case <-ctx.Done():
		cancel()
		return nil, ctx.Err()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.code == 0 {
		cancel()
		return nil, a.err
	}
	return &http.Response{
		Status: http.StatusText(a.code), StatusCode: a.code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: a.sent, Body: a, ContentLength: -1, Request: request,
	}, nil
}

// answer is the handler's http.ResponseWriter and the client's body. A short one begins when it is
// complete.
type answer struct {
	header http.Header // the handler's
	ctx    context.Context
	cancel context.CancelFunc
	begun  chan struct{}
	more   chan struct{}

	mu   sync.Mutex
	once sync.Once
	code int // 0 before the handler answers
	sent http.Header
	text bytes.Buffer
	err  error // how it ended
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(code int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writeHeader(code)
}

func (a *answer) writeHeader(code int) {
	if a.code == 0 {
		a.code, a.sent = code, a.header.Clone()
	}
}

func (a *answer) Write(text []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writeHeader(http.StatusOK)
	if err := a.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := a.text.Write(text)
	a.tell()
	return n, err
}

func (a *answer) Flush() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writeHeader(http.StatusOK)
	a.once.Do(func() { close(a.begun) })
}

// CloseNotify makes an answer one that kube-apiserver takes for HTTP/2's, which can flush.
func (a *answer) CloseNotify() <-chan bool { return nil }

func (a *answer) end(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err != nil {
		return
	}
	a.err = err
	if err == io.EOF { //nolint:errorlint // It is end's argument.
		a.writeHeader(http.StatusOK)
	}
	a.once.Do(func() { close(a.begun) })
	a.tell()
}

func (a *answer) tell() {
	select {
	case a.more <- struct{}{}:
	default:
	}
}

func (a *answer) Read(into []byte) (int, error) {
	for {
		a.mu.Lock()
		n, _ := a.text.Read(into)
		err := a.err
		a.mu.Unlock()
		switch {
		case n > 0:
			return n, nil
		case err != nil:
			return 0, err
		}
		select {
		case <-a.more:
		case <-a.ctx.Done():
			return 0, a.ctx.Err()
		}
	}
}

func (a *answer) Close() error {
	a.cancel()
	return nil
}
