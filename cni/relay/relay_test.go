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

// A node whose agent ended, hangs or breaks off is as ready as it was; a node that has just started
// is not.
func TestStatusWithoutAgent(t *testing.T) {
	listen := func(t *testing.T, path string) *net.UnixListener {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	for name, agent := range map[string]func(t *testing.T, path string){
		"ended": func(t *testing.T, path string) { _ = listen(t, path).Close() },
		"hangs": func(t *testing.T, path string) { listen(t, path) },
		"breaks off": func(t *testing.T, path string) {
			l := listen(t, path)
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					_ = conn.Close()
				}
			}()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := sockettest.Path(t)
			agent(t, path)
			for _, served := range []bool{true, false} {
				if err := SetServed(path, served); err != nil {
					t.Fatal(err)
				}
				if _, err := post(path, Path, "", nil, 0, 100*time.Millisecond); err == nil {
					t.Fatal("an agent answers")
				}
				if name == "hangs" && !served {
					continue // for statusTimeout
				}
				if _, err := PostStatus(path, Path, "", nil); err == nil || errors.Is(err, ErrAway) != served {
					t.Errorf("served %v: PostStatus() = %v", served, err)
				}
			}
		})
	}
	if _, err := PostStatus(sockettest.Path(t), Path, "", nil); err == nil || errors.Is(err, ErrAway) {
		t.Errorf("where no agent ever was: %v", err)
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
