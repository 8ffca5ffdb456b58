// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"
)

// SetClock has the program live with a clock that is ahead of the API server's: times in
// FloatingIPs that it reads are earlier by this, and those that it writes later. To the program
// and to all others that is the same as a clock of its own, as long as it keeps no time that it
// read before: so it is called while the program does not run. Times of other kinds are not
// changed: Berth compares none of them with its clock.
func (p *Proxy) SetClock(ahead time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ahead = ahead
}

// fromClock brings a request of a program whose clock is wrong to the API server's time, and
// returns by how much the clock is ahead.
func (p *Proxy) fromClock(request *http.Request) (ahead time.Duration, err error) {
	p.mu.Lock()
	ahead = p.ahead
	p.mu.Unlock()
	if ahead == 0 || !strings.HasPrefix(request.URL.Path, FloatingIPs) {
		return 0, nil
	}
	request.Header.Del("Accept-Encoding") // the answer must be readable
	if request.Body == nil {
		return ahead, nil
	}
	text, err := io.ReadAll(request.Body)
	if err != nil {
		return 0, err
	}
	// A time has the same length at any time.
	request.Body = io.NopCloser(bytes.NewReader(shift(text, ahead)))
	return ahead, nil
}

// shifted is a text of JSON with other times. A watch has an object a line.
type shifted struct {
	from    *bufio.Reader
	by      time.Duration
	pending []byte
	err     error
}

func (s *shifted) Read(p []byte) (int, error) {
	if len(s.pending) == 0 {
		if s.err != nil {
			return 0, s.err
		}
		s.pending, s.err = s.from.ReadBytes('\n')
		s.pending = shift(s.pending, s.by)
	}
	n := copy(p, s.pending)
	s.pending = s.pending[n:]
	if n == 0 {
		return 0, s.err
	}
	return n, nil
}

// timePattern finds the times that the API writes.
var timePattern = regexp.MustCompile(`"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"`)

func shift(text []byte, by time.Duration) []byte {
	const layout = `"` + time.RFC3339 + `"`
	return timePattern.ReplaceAllFunc(text, func(old []byte) []byte {
		at, err := time.Parse(layout, string(old))
		if err != nil {
			return old
		}
		return []byte(at.Add(by).Format(layout))
	})
}
