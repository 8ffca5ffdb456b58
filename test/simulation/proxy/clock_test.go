// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// A program whose clock is ahead writes later times, and reads earlier ones, of FloatingIPs only.
func TestClock(t *testing.T) {
	u, p := start(t)
	const noon, later = `{"spec":{"since":"2026-01-01T12:00:00Z","pool":"2026"}}`, `{"spec":{"since":"2026-01-01T12:00:20Z","pool":"2026"}}`
	for _, test := range []struct {
		ahead      time.Duration
		path       string
		sent, want string
	}{
		{20 * time.Second, "/apis/x/things", noon, "did " + noon},
		// What it wrote, it reads.
		{20 * time.Second, FloatingIPs, noon, "did " + noon},
		{-24 * time.Hour, FloatingIPs + "/10.0.70.2", noon, "did " + noon},
		{0, FloatingIPs, noon, "did " + noon},
	} {
		p.SetClock(test.ahead)
		response, err := http.Post(p.URL()+test.path, "application/json", strings.NewReader(test.sent))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || string(text) != test.want {
			t.Errorf("ahead by %s, %s: got %s (%v), want %s", test.ahead, test.path, text, err, test.want)
		}
	}
	if got := string(shift([]byte(noon), 20*time.Second)); got != later {
		t.Errorf("20 s later: got %s, want %s", got, later)
	}
	p.SetClock(20 * time.Second)
	response, err := http.Get(p.URL() + FloatingIPs + "?watch=1")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	u.lines <- later
	text := make([]byte, len(noon))
	if _, err := io.ReadFull(response.Body, text); err != nil || string(text) != noon {
		t.Errorf("a watch brings %s (%v), want %s", text, err, noon)
	}
}
