// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"net/http"
	"time"
)

const (
	// eventPause is the time between two events.
	eventPause = time.Second
	// eventIdle is the time after which a comment shows to proxies that the stream lives.
	eventIdle = 20 * time.Second
)

// events tells of changes, by the HTML standard's server-sent events.
func (s *server) events(w http.ResponseWriter, r *request) error {
	changed, stop := s.Register.Subscribe()
	defer stop()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	stream := http.NewResponseController(w)
	// The server's limit for requests is not for this one, which lasts.
	_ = stream.SetReadDeadline(time.Time{}) // a server without limits has none to set
	idle := time.NewTicker(eventIdle)
	defer idle.Stop()
	for {
		if _, err := fmt.Fprintf(w, "event: changed\ndata: {\"change\":%d}\n\n", s.Register.LastChange()); err != nil {
			return nil //nolint:nilerr // the client is gone
		}
		for told := false; !told; {
			if stream.Flush() != nil {
				return nil
			}
			select {
			case <-r.Context().Done():
				return nil
			case <-changed:
				told = true
			case <-idle.C:
				if _, err := fmt.Fprint(w, ": nothing changed\n\n"); err != nil {
					return nil //nolint:nilerr // the client is gone
				}
			}
		}
		select {
		case <-r.Context().Done():
			return nil
		case <-time.After(eventPause):
		}
	}
}
