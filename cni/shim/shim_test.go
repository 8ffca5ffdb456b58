// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/relay"
	"github.com/berth-dev/berth/cni/socket/sockettest"
)

// called runs a call of berth-cni and returns its output and its exit status.
func called(env map[string]string, stdin io.Reader) (stdout, stderr string, status int) {
	var out, err bytes.Buffer
	status = run(func(name string) string { return env[name] }, stdin, &out, &err)
	return out.String(), err.String(), status
}

func configOf(path string) string {
	return `{"cniVersion":"1.1.0","name":"berth","socket":"` + path + `","runtimeConfig":{"portMappings":[]}}`
}

func answer(outcome, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(relay.HeaderOutcome, outcome)
		_, _ = io.WriteString(w, body)
	}
}

// The agent gets the call as it is.
func TestRelays(t *testing.T) {
	path := sockettest.Path(t)
	env := map[string]string{
		"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c", "CNI_NETNS": "/n", "CNI_IFNAME": "eth0", "CNI_PATH": "/a:/b",
		"CNI_ARGS": "A=1;B=100%;C=two\r\nlines;D=ü",
	}
	sockettest.Serve(t, path, func(w http.ResponseWriter, r *http.Request) {
		got, err := io.ReadAll(r.Body)
		if err != nil || string(got) != configOf(path) || r.URL.Path != relay.Path {
			t.Errorf("%s: %q, %v", r.URL, got, err)
		}
		for _, variable := range relay.Variables() {
			if value, err := url.PathUnescape(r.Header.Get(relay.HeaderOf(variable))); err != nil || value != env[variable] {
				t.Errorf("%s is %q, %v", variable, value, err)
			}
		}
		answer(relay.Result, `{"cniVersion":"1.1.0"}`)(w, r)
	})
	stdout, stderr, status := called(env, strings.NewReader(configOf(path)))
	if stdout != `{"cniVersion":"1.1.0"}` || stderr != "" || status != 0 {
		t.Errorf("printed %q, %q, exit status %d", stdout, stderr, status)
	}
}

func TestPrints(t *testing.T) {
	cases := map[string]struct {
		command string
		handler http.HandlerFunc
		stdin   io.Reader
		code    uint
		text    []string
	}{
		"nothing":       {command: "DEL", handler: answer(relay.Result, "")},
		"agent's error": {command: "ADD", handler: answer(relay.Error, `{"code":120,"msg":"no"}`), code: 120, text: []string{"no"}},
		"an answer of many packets": {command: "ADD", handler: func(w http.ResponseWriter, _ *http.Request) {
			body := strings.Repeat("x", 100_000)
			w.Header().Set(relay.HeaderOutcome, relay.Result)
			w.Header().Set("Content-Length", "100000")
			for i := range 10 {
				_, _ = io.WriteString(w, body[i*10_000:(i+1)*10_000])
				w.(http.Flusher).Flush()
			}
		}},
		"garbage": {command: "ADD", handler: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") },
			code: types.ErrInternal, text: []string{"is not the Berth agent", "<html>", "200"}},
		"an agent of another version": {command: "ADD", handler: http.NotFound, code: types.ErrTryAgainLater, text: []string{"is of another version"}},
		"killed":                      {command: "ADD", handler: hangUp(""), code: types.ErrTryAgainLater, text: []string{"agent.sock", "ended before"}},
		"cut short": {command: "ADD", handler: hangUp("HTTP/1.0 200 OK\r\nCni-Outcome: result\r\nContent-Length: 100\r\n\r\n{"),
			code: types.ErrTryAgainLater, text: []string{"ended before"}},
		"cut short in the head": {command: "ADD", handler: hangUp("HTTP/1.0 200 OK\r\nCni-Outcome: result\r\n"),
			code: types.ErrTryAgainLater, text: []string{"ended before"}},
		"not there":           {command: "ADD", code: types.ErrTryAgainLater, text: []string{"agent.sock", "no such file", "kubectl get pods -A -l app.kubernetes.io/name=berth-agent"}},
		"not there, STATUS":   {command: "STATUS", code: api.CodeNotAvailable, text: []string{"agent.sock", "no such file"}},
		"input that fails":    {command: "ADD", stdin: iotest.ErrReader(errors.New("broken")), code: types.ErrIOFailure, text: []string{"stdin", "broken"}},
		"no input":            {command: "ADD", stdin: strings.NewReader(""), code: types.ErrDecodingFailure},
		"half a config":       {command: "ADD", stdin: strings.NewReader(`{"cniVersion":`), code: types.ErrDecodingFailure},
		"a socket of numbers": {command: "ADD", stdin: strings.NewReader(`{"socket":5}`), code: types.ErrDecodingFailure, text: []string{"socket"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			path := sockettest.Path(t)
			if c.handler != nil {
				sockettest.Serve(t, path, c.handler)
			}
			if c.stdin == nil {
				c.stdin = strings.NewReader(configOf(path))
			}
			stdout, _, status := called(map[string]string{"CNI_COMMAND": c.command}, c.stdin)
			if c.code == 0 {
				if status != 0 || strings.Contains(stdout, "code") {
					t.Errorf("printed %q, exit status %d", stdout, status)
				}
				return
			}
			var e types.Error
			if err := json.Unmarshal([]byte(stdout), &e); err != nil || e.Code != c.code || status != 1 {
				t.Fatalf("printed %q, exit status %d, want code %d: %v", stdout, status, c.code, err)
			}
			for _, text := range c.text {
				if !strings.Contains(e.Msg, text) {
					t.Errorf("%q lacks %q", e.Msg, text)
				}
			}
		})
	}
}

// hangUp answers with text and ends the connection.
func hangUp(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err == nil {
			_, _ = io.WriteString(conn, text)
			_ = conn.Close()
		}
	}
}

// STATUS is good while an agent that has served is away.
func TestStatusWithoutAgent(t *testing.T) {
	path := sockettest.Path(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	if err := relay.SetServed(path, true); err != nil {
		t.Fatal(err)
	}
	if stdout, _, status := called(map[string]string{"CNI_COMMAND": "STATUS"}, strings.NewReader(configOf(path))); status != 0 || stdout != "" {
		t.Errorf("printed %q, exit status %d", stdout, status)
	}
}

func TestVersion(t *testing.T) {
	stdout, _, status := called(map[string]string{"CNI_COMMAND": "VERSION"}, iotest.ErrReader(os.ErrClosed))
	info, err := (&version.PluginDecoder{}).Decode([]byte(stdout))
	if err != nil || status != 0 || !slices.Equal(info.SupportedVersions(), relay.Versions()) {
		t.Errorf("printed %q: %v, %v", stdout, info, err)
	}
	if stdout, stderr, status := called(nil, nil); stdout != "" || !strings.Contains(stderr, "berth-cni") || status != 0 {
		t.Errorf("without a command: %q, %q, exit status %d", stdout, stderr, status)
	}
}

// Every pod starts all packages of berth-cni.
func TestStaysSmall(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	packages := strings.Fields(string(out))
	for _, slow := range []string{"net", "encoding/json", "fmt", "reflect", "regexp", "log"} {
		if slices.Contains(packages, slow) {
			t.Errorf("berth-cni imports %s, which makes its start longer", slow)
		}
	}
	if !slices.Contains(packages, "github.com/berth-dev/berth/cni/relay") {
		t.Errorf("it imports %v", packages)
	}
}
