// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/cni/socket/sockettest"
)

// A call waits for an agent that is gone for a moment, and for an agent that does not
// come back until the limit. It does not wait where no agent ever was.
func TestConnect(t *testing.T) {
	path := sockettest.Path(t)
	if _, err := connect(path, time.Hour); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a socket: %v", err)
	}

	old, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	old.SetUnlinkOnClose(false)
	_ = old.Close()
	if _, err := connect(path, time.Millisecond); err == nil {
		t.Error("connected to nobody")
	}

	serving := make(chan struct{})
	time.AfterFunc(100*time.Millisecond, func() {
		defer close(serving)
		next := path + ".next" // the socket is not missing for a moment
		sockettest.Serve(t, next, func(http.ResponseWriter, *http.Request) {})
		if err := os.Rename(next, path); err != nil {
			t.Error(err)
		}
	})
	defer func() { <-serving }()
	conn, err := connect(path, time.Minute)
	if err != nil {
		t.Fatalf("returned before anybody listened: %v", err)
	}
	_ = conn.Close()
}

// The agent is away for a short time, does not come back, or never was.
func TestAway(t *testing.T) {
	path := sockettest.Path(t)
	now := time.Now()
	if Away(path, now) {
		t.Error("an agent that never was is away")
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if Away(path, now) {
		t.Error("an agent that listens is away")
	}
	_ = l.Close()
	for age, want := range map[time.Duration]bool{0: true, Absence - time.Minute: true, Absence + time.Minute: false} {
		touched := now.Add(-age)
		if err := os.Chtimes(path, touched, touched); err != nil {
			t.Fatal(err)
		}
		if got := Away(path, now); got != want {
			t.Errorf("after %v: Away() = %v, want %v", age, got, want)
		}
	}
}

// A header has any value on one line.
func FuzzLine(f *testing.F) {
	f.Add("K8S_POD_NAME=a;B=100%\r\nü\x00")
	f.Add(" eth0\t ")
	f.Fuzz(func(t *testing.T, value string) {
		line := Line("CNI_ARGS", value)
		header, err := textproto.NewReader(bufio.NewReader(strings.NewReader(line + "\r\n"))).ReadMIMEHeader()
		if err != nil || len(header) != 1 {
			t.Fatalf("Line(%q) = %q is read as %v, %v", value, line, header, err)
		}
		if got, err := url.PathUnescape(header.Get("CNI-ARGS")); err != nil || got != value {
			t.Errorf("Line(%q) = %q: %q, %v", value, line, got, err)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("HTTP/1.0 200 OK\r\nCni-Outcome: result\r\nContent-Length: 2\r\n\r\n{}"))
	f.Add([]byte("HTTP/1.1 2\r\n"))
	f.Add([]byte("HTTP/1.0 -12 OK\r\n\r\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		answer, err := parse(raw)
		if err == nil && (answer.Status < 0 || len(answer.Body) > len(raw)) {
			t.Errorf("parse(%q) = %+v", raw, answer)
		}
	})
}
