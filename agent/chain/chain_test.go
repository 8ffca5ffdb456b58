// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/google/go-cmp/cmp"
)

// fakeExec records calls as "COMMAND type config" and answers from a table.
type fakeExec struct {
	version.PluginDecoder
	calls []string
	fail  map[string]error
	// hang is the call that ends with its context.
	hang string
	// version of the plugins' programs.
	version string
}

func (f *fakeExec) Identify(string) (string, error) { return f.version, nil }

func (f *fakeExec) FindInPath(plugin string, _ []string) (string, error) {
	if plugin == "missing" {
		return "", errors.New(`plugin "missing" is not installed`)
	}
	return "/bin/" + plugin, nil
}

func (f *fakeExec) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	env := map[string]string{}
	for _, e := range environ {
		k, v, _ := strings.Cut(e, "=")
		env[k] = v
	}
	call := env["CNI_COMMAND"] + " " + filepath.Base(path)
	f.calls = append(f.calls, call+" "+string(stdin))
	if f.hang == call {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if err := f.fail[call]; err != nil {
		return nil, err
	}
	if env["CNI_COMMAND"] == "ADD" {
		return fmt.Appendf(nil, `{"cniVersion":"1.0.0","interfaces":[{"name":%q}]}`, filepath.Base(path)), nil
	}
	return nil, nil
}

const twoPlugins = `{"cniVersion":"1.0.0","name":"net","plugins":[
	{"type":"first","capabilities":{"portMappings":true}},{"type":"second","capabilities":{"bandwidth":true,"ips":false}}]}`

func parse(t *testing.T, raw string) *Network {
	t.Helper()
	n, err := Parse([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

var container = Attachment{ContainerID: "c", NetNS: "/n", IfName: "eth0", Capabilities: map[string]json.RawMessage{
	"portMappings": json.RawMessage(`[1]`), "bandwidth": json.RawMessage(`{"a":2}`), "ips": json.RawMessage(`["x"]`), "dns": json.RawMessage(`{}`),
}}

func TestAdd(t *testing.T) {
	f := &fakeExec{}
	result, err := NewRunner(f, []string{"/bin"}).Add(t.Context(), parse(t, twoPlugins), container, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`ADD first {"capabilities":{"portMappings":true},"cniVersion":"1.0.0","name":"net","runtimeConfig":{"portMappings":[1]},"type":"first"}`,
		`ADD second {"capabilities":{"bandwidth":true,"ips":false},"cniVersion":"1.0.0","name":"net","prevResult":{"cniVersion":"1.0.0","interfaces":[{"name":"first"}]},"runtimeConfig":{"bandwidth":{"a":2}},"type":"second"}`,
	}
	if diff := cmp.Diff(want, f.calls); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !strings.Contains(string(result), `"second"`) {
		t.Errorf("result %s does not come from the last plugin", result)
	}
}

func TestDelRunsAllBackwards(t *testing.T) {
	f := &fakeExec{fail: map[string]error{"DEL second": types.NewError(120, "no", "")}}
	err := NewRunner(f, nil).Del(t.Context(), parse(t, twoPlugins), container, json.RawMessage(`{"cniVersion":"1.0.0"}`))
	var e *types.Error
	if !errors.As(err, &e) || e.Code != 120 || !strings.Contains(err.Error(), `DEL by plugin second of network "net"`) {
		t.Errorf("Del() = %v", err)
	}
	if len(f.calls) != 2 || !strings.HasPrefix(f.calls[0], "DEL second") || !strings.HasPrefix(f.calls[1], "DEL first") ||
		!strings.Contains(f.calls[1], `"prevResult"`) {
		t.Errorf("calls %q", f.calls)
	}
}

// A plugin that hangs in DEL leaves time to the others.
func TestDelSharesTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeExec{hang: "DEL second"}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		err := NewRunner(f, nil).Del(ctx, parse(t, twoPlugins), container, nil)
		if !errors.Is(err, context.DeadlineExceeded) || len(f.calls) != 2 || time.Since(began) != 30*time.Second {
			t.Errorf("Del() = %v after %v, calls %q", err, time.Since(began), f.calls)
		}
	})
}

func TestVersions(t *testing.T) {
	cases := map[string]struct {
		version string
		want    []string
	}{
		"old":     {"0.3.1", []string{"DEL"}},
		"no GC":   {"1.0.0", []string{"CHECK", "DEL"}},
		"current": {"1.1.0", []string{"CHECK", "STATUS", "GC", "DEL"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f := &fakeExec{}
			r, n := NewRunner(f, nil), parse(t, `{"cniVersion":"`+c.version+`","name":"n","plugins":[{"type":"p"}]}`)
			err := errors.Join(r.Check(t.Context(), n, container, nil), r.Status(t.Context(), n), r.GC(t.Context(), n, nil),
				r.Del(t.Context(), n, container, json.RawMessage(`{}`)))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, call := range f.calls {
				got = append(got, strings.Fields(call)[0])
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			for _, call := range f.calls {
				if strings.Contains(call, "runtimeConfig") {
					t.Errorf("a plugin that declares no capability was given %s", call)
				}
			}
			if last := f.calls[len(f.calls)-1]; strings.Contains(last, "prevResult") != (c.version != "0.3.1") {
				t.Errorf("DEL was given %s", last)
			}
		})
	}
}

// The first releases of CNI's library read another key.
func TestGC(t *testing.T) {
	for valid, want := range map[string]string{
		"none": `[]`,
		"one":  `[{"containerID":"c","ifname":"eth0"}]`,
	} {
		var attachments []types.GCAttachment
		if valid == "one" {
			attachments = []types.GCAttachment{{ContainerID: "c", IfName: "eth0"}}
		}
		f := &fakeExec{}
		if err := NewRunner(f, nil).GC(t.Context(), parse(t, `{"cniVersion":"1.1.0","name":"n","plugins":[{"type":"p"}]}`), attachments); err != nil {
			t.Fatal(err)
		}
		calls := []string{`GC p {"cni.dev/attachments":` + want + `,"cni.dev/valid-attachments":` + want + `,"cniVersion":"1.1.0","name":"n","type":"p"}`}
		if diff := cmp.Diff(calls, f.calls); diff != "" {
			t.Errorf("%s (-want +got):\n%s", valid, diff)
		}
	}
}

func TestMissingPlugin(t *testing.T) {
	r, n := NewRunner(&fakeExec{}, nil), parse(t, `{"cniVersion":"1.1.0","name":"n","plugins":[{"type":"missing"}]}`)
	_, add := r.Add(t.Context(), n, container, nil)
	for verb, err := range map[string]error{
		"ADD": add, "DEL": r.Del(t.Context(), n, container, nil), "CHECK": r.Check(t.Context(), n, container, nil),
		"STATUS": r.Status(t.Context(), n), "GC": r.GC(t.Context(), n, nil),
	} {
		if err == nil || !strings.Contains(err.Error(), verb+` by plugin missing of network "n"`) {
			t.Errorf("%s: %v", verb, err)
		}
	}
	// Of an older network, STATUS asks no plugin, but each must be there.
	for plugins, missing := range map[string]bool{`{"type":"p"}`: false, `{"type":"missing"}`: true, `{"type":"p"},{"type":"missing"}`: true} {
		err := r.Status(t.Context(), parse(t, `{"cniVersion":"1.0.0","name":"n","plugins":[`+plugins+`]}`))
		if missing != (err != nil) || err != nil && !strings.Contains(err.Error(), `STATUS by plugin missing of network "n"`) {
			t.Errorf("STATUS of %s: %v", plugins, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for raw, text := range map[string]string{
		``:                            "parse network configuration",
		`{"name":"n"}`:                "has no plugins",
		`{"name":"n","plugins":[{}]}`: "missing 'type'",
		`{"name":"a/b","plugins":[{"type":"p"}]}`:                     "invalid characters",
		`{"name":"n","cniVersion":"9.0.0","plugins":[{"type":"p"}]}`:  "supports up to",
		`{"name":"n","cniVersion":"newest","plugins":[{"type":"p"}]}`: "supports up to",
		`{"plugins":[{"type":"p"}]}`:                                  "no name",
	} {
		if _, err := Parse([]byte(raw)); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("Parse(%q) = %v, want %q", raw, err, text)
		}
	}
}

func TestWithPlugin(t *testing.T) {
	n, err := parse(t, twoPlugins).WithPlugin("first", map[string]any{"uplink": "eth1"})
	if err != nil {
		t.Fatal(err)
	}
	var conf struct{ Uplink string }
	if err := n.Plugin(&conf); err != nil || conf.Uplink != "eth1" || len(n.Types()) != 2 {
		t.Errorf("%+v, %v, %v", conf, err, n.Types())
	}
	if _, err := n.WithPlugin("berth-veth", nil); err == nil || !strings.Contains(err.Error(), "must be berth-veth, is first") {
		t.Errorf("WithPlugin() = %v", err)
	}
}

func TestFind(t *testing.T) {
	every := func(*Network) error { return nil }
	cases := map[string]struct {
		files map[string]string
		want  string
		text  []string
	}{
		"first by name": {map[string]string{"20-b.conflist": named("b"), "10-a.conflist": named("a")}, "a", nil},
		"not ours":      {map[string]string{"00-own.conflist": named("own"), "10-a.conflist": named("a")}, "a", nil},
		"single":        {map[string]string{"10-a.conf": `{"name":"a","cniVersion":"1.0.0","type":"p"}`}, "a", nil},
		"skips broken":  {map[string]string{"10-a.conflist": "{", "20-b.conflist": named("b")}, "b", nil},
		"other files":   {map[string]string{"10-a.conflist.bak": named("a"), ".11.conflist": named("a"), "12.txt": ""}, "", []string{"no network configuration"}},
		"only broken":   {map[string]string{"10-a.conflist": "{", "20-b.conf": `{"name":"b"}`}, "", []string{"no network configuration", "10-a.conflist", "20-b.conf"}},
		"none":          {nil, "", []string{"no network configuration"}},
		"with a folder": {map[string]string{"10-a.conflist": `{"name":"a","cniVersion":"1.0.0"}`, "a/1.conf": `{"type":"inner"}`}, "a", nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, content := range c.files {
				path := filepath.Join(dir, file)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			n, err := Find(dir, "00-own.conflist", every)
			if c.want != "" {
				if err != nil || n.Name() != c.want {
					t.Fatalf("Find() = %v, %v, want %s", n, err, c.want)
				}
				// The record makes the same network without the folder.
				if again, err := Parse(n.Raw()); err != nil || !cmp.Equal(n.Types(), again.Types()) {
					t.Errorf("Parse(Raw()) = %v, %v", again, err)
				}
				return
			}
			if !errors.Is(err, ErrNoNetwork) {
				t.Fatalf("Find() = %v, %v, want ErrNoNetwork", n, err)
			}
			for _, text := range c.text {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%q lacks %q", err, text)
				}
			}
		})
	}
}

func named(name string) string {
	return `{"cniVersion":"1.0.0","name":"` + name + `","plugins":[{"type":"p"}]}`
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(twoPlugins))
	f.Add([]byte(`{"name":"n","cniVersions":["0.4.0","1.1.0"],"plugins":[{"type":"p","capabilities":null}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		n, err := Parse(raw)
		if err != nil {
			return
		}
		for i := range n.Types() {
			conf, err := n.configOf(i, container, json.RawMessage(`{}`))
			if err != nil || !json.Valid(conf) {
				t.Errorf("configOf(%d) of %q = %q, %v", i, raw, conf, err)
			}
		}
	})
}

// TestExec runs real programs.
func TestExec(t *testing.T) {
	dir := t.TempDir()
	script := func(name, body string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+body), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script("says", `cat; echo " $CNI_COMMAND"`)
	script("fails", `echo '{"code":7,"msg":"bad config"}'; exit 1`)
	script("mumbles", `echo '{"code":7}'; exit 1`)
	script("dies", `echo oops >&2; exit 3`)
	script("hangs", `exec sleep 600`)
	script("leaves", `sleep 600 & echo done`)
	e := &Exec{}
	find := func(name string) string {
		path, err := e.FindInPath(name, []string{"/nowhere", dir})
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	out, err := e.ExecPlugin(t.Context(), find("says"), []byte("in"), []string{"CNI_COMMAND=ADD", "PATH=" + os.Getenv("PATH")})
	if err != nil || string(out) != "in ADD\n" {
		t.Errorf("%q, %v", out, err)
	}
	var plugin *types.Error
	if _, err := e.ExecPlugin(t.Context(), find("fails"), nil, nil); !errors.As(err, &plugin) || plugin.Code != 7 {
		t.Errorf("a plugin's own error: %v", err)
	}
	if _, err := e.ExecPlugin(t.Context(), find("mumbles"), nil, nil); err == nil || errors.As(err, &plugin) || !strings.Contains(err.Error(), "code") {
		t.Errorf("a plugin's error without a message: %v", err)
	}
	if _, err := e.ExecPlugin(t.Context(), find("dies"), nil, nil); err == nil || !strings.Contains(err.Error(), "oops") {
		t.Errorf("a plugin that says nothing: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.ExecPlugin(ctx, find("hangs"), nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a plugin that hangs: %v", err)
	}
	if out, err := e.ExecPlugin(t.Context(), find("leaves"), nil, []string{"PATH=" + os.Getenv("PATH")}); err != nil || string(out) != "done\n" {
		t.Errorf("a plugin whose child keeps the output: %q, %v", out, err)
	}
	for _, name := range []string{"absent", filepath.Join("..", filepath.Base(dir), "says"), ""} {
		if _, err := e.FindInPath(name, []string{dir}); err == nil {
			t.Errorf("FindInPath(%q) succeeds", name)
		}
	}
}

// A plugin that can serve ADD is not asked again for a time; one that cannot is.
func TestStatusIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeExec{fail: map[string]error{}}
		r := NewRunner(f, nil)
		one, other := parse(t, `{"cniVersion":"1.1.0","name":"n","plugins":[{"type":"a"},{"type":"b"}]}`), parse(t, `{"cniVersion":"1.1.0","name":"n","plugins":[{"type":"a"},{"type":"b","x":1}]}`)
		asks := func(when string, n *Network, want int) {
			t.Helper()
			f.calls = nil
			err := r.Status(t.Context(), n)
			if (err != nil) != (len(f.fail) > 0) || len(f.calls) != want {
				t.Errorf("%s: Status() = %v and asks %q, want %d questions", when, err, f.calls, want)
			}
		}
		asks("first", one, 2)
		asks("again", one, 0)
		asks("a part of the network", one.Chained(), 1)
		asks("another configuration", other, 2)
		asks("the first again", one, 0)
		f.version = "2"
		asks("another version of the plugins", one, 2)
		<-time.After(goodFor - time.Second)
		asks("a moment before the end", one, 0)
		<-time.After(time.Second)
		f.fail["STATUS b"] = &types.Error{Code: 50, Msg: "no"}
		asks("a plugin fails", one, 2)
		asks("and is asked again", one, 2)
		delete(f.fail, "STATUS b")
		asks("it is ready again", one, 2)
		asks("and believed", one, 0)
		f.fail["ADD a"] = errors.New("boom")
		if _, err := r.Add(t.Context(), one, container, nil); err == nil {
			t.Error("Add() succeeds")
		}
		delete(f.fail, "ADD a")
		asks("after an ADD that failed", one, 2)
	})
}
