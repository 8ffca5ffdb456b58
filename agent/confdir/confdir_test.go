// SPDX-License-Identifier: Apache-2.0

package confdir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/netnstest"
)

const (
	own     = "00-berth.conflist"
	ours    = `{"name":"berth","plugins":[{"type":"berth-cni"}]}`
	older   = `{"name":"berth","plugins":[{"type":"berth-cni","socket":"/run/old"}]}`
	flannel = `{"name":"cbr0","plugins":[{"type":"flannel"},{"type":"portmap"}]}`
	drawing = `{"name":"lan","plugins":[{"type":"macvlan","ipam":{"type":"berth-ipam"}}]}`
	single  = `{"name":"kindnet","type":"ptp"}`
)

func TestLook(t *testing.T) {
	for name, test := range map[string]struct {
		files map[string]string
		want  View
	}{
		"an empty folder":               {nil, View{}},
		"another network":               {map[string]string{"10-flannel.conflist": flannel}, View{}},
		"ours":                          {map[string]string{own: ours, "10-flannel.conflist": flannel}, View{Written: true}},
		"of an older version":           {map[string]string{own: older}, View{}},
		"renamed":                       {map[string]string{own + ".cilium_bak": ours, "05-cilium.conflist": flannel}, View{MovedTo: own + ".cilium_bak"}},
		"emptied":                       {map[string]string{own: ""}, View{}},
		"another is first":              {map[string]string{own: ours, "00-a.conf": single}, View{Written: true, First: "00-a.conf", Plugin: "ptp"}},
		"several are first":             {map[string]string{own: ours, "00-a.conf": single, "00-aa.conflist": flannel}, View{Written: true, First: "00-a.conf", Plugin: "ptp"}},
		"another is first, ours gone":   {map[string]string{"00-a.conflist": flannel}, View{First: "00-a.conflist", Plugin: "flannel"}},
		"broken and first":              {map[string]string{own: ours, "00-a.json": "{"}, View{Written: true, First: "00-a.json"}},
		"hidden and first":              {map[string]string{own: ours, ".a.conflist": flannel}, View{Written: true, First: ".a.conflist", Plugin: "flannel"}},
		"no configuration":              {map[string]string{own: ours, "00-a.conflist.bak": flannel, "00-kubeconfig": "{}", ".00-berth.conflist.tmp-1": ours}, View{Written: true, MovedTo: ".00-berth.conflist.tmp-1"}},
		"Multus leads to ours":          {map[string]string{own: ours, "00-a-multus.conf": `{"type":"multus","clusterNetwork":"/host/etc/cni/net.d/00-berth.conflist"}`}, View{Written: true, CalledByMultus: true}},
		"addresses are ours":            {map[string]string{own: ours, "00-a.conflist": drawing}, View{Written: true}},
		"Multus leads to our addresses": {map[string]string{own: ours, "00-a-multus.conf": `{"type":"multus","clusterNetwork":"/etc/cni/net.d/05-b.conflist"}`, "05-b.conflist": drawing}, View{Written: true}},
		"Multus leads past ours":        {map[string]string{own: ours, "00-a-multus.conf": `{"type":"multus","clusterNetwork":"/host/etc/cni/net.d/10-flannel.conflist"}`}, View{Written: true, First: "00-a-multus.conf", Plugin: "multus"}},
	} {
		t.Run(name, func(t *testing.T) {
			var files []File
			for name, content := range test.files {
				files = append(files, File{name, []byte(content)})
			}
			if diff := cmp.Diff(test.want, Look(files, own, []byte(ours))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestLeadsTo(t *testing.T) {
	for config, want := range map[string]bool{
		ours:                   true,
		flannel:                false,
		single:                 false,
		"":                     false,
		"null":                 false,
		`{"type":"berth-cni"}`: true,
		`{"plugins":[{"type":"tuning"},{"type":"berth-cni"}]}`:                       true,
		`{"type":"multus","clusterNetwork":"berth"}`:                                 true,
		`{"type":"multus-shim","clusterNetwork":"/etc/cni/net.d/00-berth.conflist"}`: true,
		`{"type":"multus-shim","clusterNetwork":"/etc/cni/net.d/10-other.conflist"}`: false,
		`{"plugins":[{"type":"multus-shim","clusterNetwork":"00-berth.conflist"}]}`:  true,
		`{"type":"multus","delegates":[` + ours + `]}`:                               true,
		`{"type":"multus","delegates":[` + flannel + `,` + ours + `]}`:               false,
		`{"type":"multus","delegates":[]}`:                                           false,
		`{"type":"multus"}`:                                                          false,
		`{"type":"bridge","clusterNetwork":"berth"}`:                                 false,
		`{"type":"multus","clusterNetwork":"cbr0","delegates":[` + ours + `]}`:       false,
	} {
		if got := LeadsTo([]byte(config), own); got != want {
			t.Errorf("%s: %t, want %t", config, got, want)
		}
	}
}

// A step is a view, and the keeper's answer to it.
type step struct {
	after   time.Duration
	view    View
	others  bool
	refusal error
	do      action
	problem string // a part of it; empty: none
}

func TestDecide(t *testing.T) {
	refusal := errors.New("calico needs files")
	there, gone := View{Written: true}, View{}
	stolen := View{MovedTo: own + ".cilium_bak"}
	var fight []step
	fight = append(fight, step{view: gone, others: true, do: write})
	for range maxRewrites {
		fight = append(fight, step{after: time.Minute, view: stolen, others: true, do: write})
	}
	fight = append(fight,
		step{after: time.Minute, view: stolen, others: true, do: nothing, problem: "5 times within an hour. It renames it to " + own + ".cilium_bak: set cni.exclusive=false"},
		step{after: 54 * time.Minute, view: gone, others: true, do: nothing, problem: "It deletes or overwrites it; the agent writes it again at "},
		step{after: time.Minute, view: gone, others: true, do: write},
		step{view: there, others: true, do: nothing},
	)
	for name, steps := range map[string][]step{
		"is written once":                      {{view: gone, do: write}, {view: there, do: nothing}},
		"is found":                             {{view: there, others: true, do: nothing}},
		"another program's":                    fight,
		"comes after another":                  {{view: View{First: "00-a.conf", Plugin: "ptp"}, do: write, problem: `takes 00-a.conf (plugin "ptp") in place of ` + own}},
		"comes after Multus":                   {{view: View{Written: true, First: "00-a.conf", Plugin: "multus-shim"}, problem: "have its clusterNetwork name " + own}},
		"is not written":                       {{view: gone, others: true, refusal: refusal, do: nothing, problem: "calico"}, {view: gone, others: true, do: write}},
		"is removed for a later network":       {{view: gone, do: write}, {view: there, do: nothing}, {view: there, others: true, refusal: refusal, do: remove, problem: "calico"}, {view: gone, others: true, refusal: refusal, problem: "calico"}, {view: gone, others: true, do: write}},
		"stays where pods use it":              {{view: gone, others: true, do: write}, {view: there, others: true, refusal: refusal, do: nothing, problem: "calico"}},
		"stays where pods have used it":        {{view: gone, do: write}, {view: there, others: true, do: nothing}, {view: there, others: true, refusal: refusal, do: nothing, problem: "calico"}},
		"stays where an earlier agent made it": {{view: there, do: nothing}, {view: there, others: true, refusal: refusal, do: nothing, problem: "calico"}},
	} {
		t.Run(name, func(t *testing.T) {
			now, p := time.Unix(1e9, 0), past{}
			for i, s := range steps {
				now = now.Add(s.after)
				do, problem := p.decide(own, s.view, s.others, s.refusal, now)
				if do != s.do {
					t.Fatalf("step %d: action %d, want %d", i, do, s.do)
				}
				if s.problem == "" && problem != nil || !strings.Contains(text(problem), s.problem) {
					t.Fatalf("step %d: %v, want %q", i, problem, s.problem)
				}
			}
		})
	}
}

// keep starts a keeper in a folder, and returns its problems, in order.
func keep(t *testing.T, dir string, others func() (bool, error), options ...func(*Keeper)) (*Keeper, <-chan error) {
	t.Helper()
	told := make(chan error, 10)
	k := &Keeper{Dir: dir, Name: own, Content: []byte(ours), Others: others, Told: func(problem error) { told <- problem }}
	for _, set := range options {
		set(k)
	}
	if err := k.Ready(); err == nil {
		t.Error("ready before it has looked")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return k, told
}

// until waits until the folder has the file, or has not.
func until(t *testing.T, path string, there bool) {
	t.Helper()
	netnstest.Eventually(t, func() error {
		content, err := os.ReadFile(path)
		if there == (err == nil && string(content) == ours) {
			return nil
		}
		return fmt.Errorf("%s: %q, %w; want it there: %t", path, content, err, there)
	})
}

func none() (bool, error) { return true, nil }

// What other programs do to the file is undone at once, and only some times.
func TestKeeperWritesAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "net.d")
	k, told := keep(t, dir, none)
	path := filepath.Join(dir, own)
	until(t, path, true)
	steal := []func() error{
		func() error { return os.Remove(path) },
		func() error { return os.Rename(path, path+".cilium_bak") },
		func() error { return os.WriteFile(path, []byte(flannel), 0o600) },
		func() error { return os.Truncate(path, 0) },
		func() error { return os.Rename(path, path+".cilium_bak") },
	}
	for _, do := range steal {
		if err := do(); err != nil {
			t.Fatal(err)
		}
		until(t, path, true)
	}
	if err := os.Rename(path, path+".cilium_bak"); err != nil {
		t.Fatal(err)
	}
	if problem := <-told; !strings.Contains(problem.Error(), ".cilium_bak: set cni.exclusive=false") {
		t.Error(problem)
	}
	if err := k.Ready(); err == nil {
		t.Error("ready without the file")
	}
	until(t, path, false)
}

// A pod that came after the file was there, and gets an address without a call, shows that the
// runtime reads another folder. Until a call comes.
func TestKeeperIsNotCalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		k := &Keeper{Dir: "/etc/cni/net.d", Told: func(problem error) { told = append(told, problem.Error()) }}
		k.Came("before")
		k.note(t.Context(), nil)
		k.Came("while the runtime reads it")
		<-time.After(reload)
		k.Came("after")
		for _, uid := range []string{"before", "while the runtime reads it"} {
			k.Addressed(uid, "shop/"+uid)
		}
		if err := k.Ready(); err != nil {
			t.Errorf("pods that may have come before the file: %v", err)
		}
		k.Addressed("after", "shop/web")
		k.Addressed("after", "shop/web")
		if err := k.Ready(); err == nil || !strings.HasPrefix(err.Error(), "pod shop/web got an address, and the runtime has not called Berth for it: it reads another folder than /etc/cni/net.d") || len(told) != 1 {
			t.Errorf("a pod that came after the file: %v, told %q", err, told)
		}
		k.Called()
		k.Came("another")
		k.Addressed("another", "shop/other")
		if err := k.Ready(); err != nil || len(told) != 1 {
			t.Errorf("after a call: %v, told %q", err, told)
		}
	})
}

// A folder that is renamed is not the runtime's any more: the agent ends, and says so.
func TestKeeperFolderIsRenamed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "net.d")
	k, ended := &Keeper{Dir: dir, Name: own, Content: []byte(ours), Others: none}, make(chan error, 1)
	go func() { ended <- k.Run(t.Context()) }()
	until(t, filepath.Join(dir, own), true)
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "was deleted or renamed") {
		t.Errorf("Run() = %v", err)
	}
}

// The file has another name than an earlier agent gave it: the runtime does not take that one any
// more.
func TestKeeperForgetsAnotherName(t *testing.T) {
	dir := t.TempDir()
	former := filepath.Join(dir, "00-a.conflist")
	if err := os.WriteFile(former, []byte(ours), 0o600); err != nil {
		t.Fatal(err)
	}
	keep(t, dir, none)
	until(t, filepath.Join(dir, own), true)
	until(t, former, false)
}

// A node whose programs use up the watches of files has an agent all the same.
func TestKeeperWithoutWatch(t *testing.T) {
	dir := t.TempDir()
	k, _ := keep(t, dir, none, func(k *Keeper) {
		k.watch, k.again = func() (*fsnotify.Watcher, error) { return nil, errors.New("too many open files") }, time.Millisecond
	})
	path := filepath.Join(dir, own)
	until(t, path, true)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	until(t, path, true)
	netnstest.Eventually(t, k.Ready)
}

func TestKeeperSaysWhoIsFirst(t *testing.T) {
	dir := t.TempDir()
	k, told := keep(t, dir, none)
	until(t, filepath.Join(dir, own), true)
	first := filepath.Join(dir, "00-a.conflist")
	if err := os.WriteFile(first+".new", []byte(flannel), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(first+".new", first); err != nil {
		t.Fatal(err)
	}
	if problem := <-told; !strings.Contains(problem.Error(), "takes 00-a.conflist (plugin \"flannel\")") {
		t.Error(problem)
	}
	if err := os.Remove(first); err != nil {
		t.Fatal(err)
	}
	netnstest.Eventually(t, k.Ready)
}

// A network that the agent cannot run is left to the runtime.
func TestKeeperLeavesANetworkThatNeedsTheNode(t *testing.T) {
	dir := t.TempDir()
	calico := filepath.Join(dir, "10-calico.conflist")
	_, told := keep(t, dir, func() (bool, error) {
		if _, err := os.Stat(calico); err == nil {
			return true, errors.New("calico needs files of the node")
		}
		return false, nil
	})
	path := filepath.Join(dir, own)
	until(t, path, true)
	if err := os.WriteFile(calico, []byte(`{"plugins":[{"type":"calico"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if problem := <-told; !strings.Contains(problem.Error(), "calico needs") {
		t.Error(problem)
	}
	until(t, path, false)
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || !slices.Equal(names, []string{calico}) {
		t.Errorf("left are %q, %v", names, err)
	}
}
