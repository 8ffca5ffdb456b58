// SPDX-License-Identifier: Apache-2.0

// Package console tests "kubectl berth console" as a user meets it: started by a real kubectl on a
// real API server, with the rights that the user has; its API held against the document that it
// serves, and its pages in a real browser.
package console

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/program"
	"github.com/berth-dev/berth/test/simulation/proxy"
)

func TestMain(m *testing.M) { simulation.Main(m, "TestAPI") }

// viewer is a user with the rights of manifests/examples/viewer-rbac.yaml.
const viewer = "viewer"

// cluster is the context of the user's kubeconfig, which the pages name.
const cluster = "production"

// prefix of the API's paths.
const prefix = "/api/v1"

// console is a "kubectl berth console" that runs, and the proxy by which it reaches the API server.
type console struct {
	*proxy.Proxy
	*program.Process
	w   *simulation.World
	log string
	// root is the URL of the console, without a path, and token lets in.
	root, token string
	client      *http.Client
	document    *document
}

// startAs starts a console as a user of the world's API server, with additions to its environment.
func startAs(w *simulation.World, user string, env ...string) *console {
	w.T.Helper()
	return startWith(w, w.Config, as(user), nil, env...)
}

// as has requests made as a user.
func as(user string) proxy.Options {
	return proxy.Options{Identity: rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}}
}

// startWith starts a console with flags, whose requests go by a proxy with the credentials of
// config.
func startWith(w *simulation.World, config *rest.Config, options proxy.Options, flags []string, env ...string) *console {
	w.T.Helper()
	options.Random = random(w)
	p, err := proxy.Start(w.Ctx, config, options)
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(p.Stop)
	log, err := os.CreateTemp(w.T.TempDir(), "console-*.log")
	if err != nil {
		w.T.Fatal(err)
	}
	defer log.Close()
	kubeconfig := p.Kubeconfig()
	kubeconfig["current-context"] = cluster
	kubeconfig["contexts"].([]any)[0].(map[string]any)["name"] = cluster
	words := slices.Concat(env, kubectl(w, w.File("kubeconfig-*", kubeconfig)))
	process, err := program.Start(log, "/usr/bin/env", slices.Concat(words, []string{"berth", "console", "--port=0"}, flags)...)
	if err != nil {
		w.T.Fatal(err)
	}
	c := &console{Proxy: p, Process: process, w: w, log: log.Name(), client: &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport:     &http.Transport{MaxIdleConnsPerHost: 64},
	}}
	w.T.Cleanup(func() {
		c.stop()
		if w.T.Failed() {
			w.T.Logf("the end of the console's output:\n%s", program.Tail(c.log, 60))
		}
	})
	c.awaitURL()
	c.document = newDocument(w.T, c.get(prefix+"/openapi.yaml").body)
	return c
}

// kubectl returns the words of a command that runs kubectl with a kubeconfig, and Berth's plugin on
// its PATH.
func kubectl(w *simulation.World, kubeconfig string) []string {
	w.T.Helper()
	bin, err := lab.BinDir()
	if err != nil {
		w.T.Fatal(err)
	}
	path := strings.Join([]string{filepath.Dir(simulation.Plugin(w.T)), bin, os.Getenv("PATH")}, string(os.PathListSeparator))
	return []string{"PATH=" + path, "HOME=" + w.T.TempDir(), "KUBECONFIG=" + kubeconfig, "TZ=UTC", filepath.Join(bin, "kubectl")}
}

var printedURL = regexp.MustCompile(`(?m)^Open (http://127\.0\.0\.1:\d+)/\?token=(\S+)$`)

func (c *console) awaitURL() {
	c.w.T.Helper()
	c.w.Eventually("wait for the URL of the console", func() error {
		text, err := os.ReadFile(c.log)
		if err != nil {
			return err
		}
		found := printedURL.FindSubmatch(text)
		if found == nil {
			return errors.Join(fmt.Errorf("it printed %q", text), c.Running())
		}
		c.root, c.token = string(found[1]), string(found[2])
		return nil
	})
}

// stop ends the console as a user does; it must end at once and well. It is idempotent.
func (c *console) stop() {
	c.w.T.Helper()
	c.Signal(syscall.SIGTERM)
	select {
	case <-c.Ended():
		if err := c.Wait(); err != nil {
			c.w.T.Errorf("after SIGTERM the console ended with %v", err)
		}
	case <-time.After(simulation.Patience):
		c.w.T.Errorf("the console does not end after SIGTERM")
		c.Kill()
	}
}

// answer is an answer of the console.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// get asks as a program does. The answer must be as the document says.
func (c *console) get(path string) *answer {
	c.w.T.Helper()
	return c.ask(http.MethodGet, path, nil)
}

// ask makes a request, which change changes before it is sent.
func (c *console) ask(method, path string, change func(*http.Request)) *answer {
	c.w.T.Helper()
	request, err := http.NewRequestWithContext(c.w.Ctx, method, c.root+path, nil)
	if err != nil {
		c.w.T.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+c.token)
	if change != nil {
		change(request)
	}
	response, err := c.client.Do(request)
	if err != nil {
		c.w.T.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		c.w.T.Fatalf("%s %s: %v", method, path, err)
	}
	said := &answer{response.StatusCode, response.Header, body}
	if c.document != nil && strings.HasPrefix(request.URL.Path, prefix+"/") {
		if err := c.document.check(request, said); err != nil {
			c.w.T.Errorf("%s %s: the answer is not as the document says: %v\n%.2000s", method, path, err, body)
		}
	}
	return said
}

// read asks the API for JSON.
func read[T any](c *console, path string) T {
	c.w.T.Helper()
	said := c.get(prefix + path)
	var into T
	if said.status != http.StatusOK {
		c.w.T.Fatalf("GET %s: %d: %s", path, said.status, said.body)
	}
	if err := json.Unmarshal(said.body, &into); err != nil {
		c.w.T.Fatalf("GET %s: %v: %s", path, err, said.body)
	}
	return into
}

// until looks after each event that the console sends until check is content: an event must come
// after each change.
func (c *console) until(what string, check func() error) {
	c.w.T.Helper()
	ctx, cancel := context.WithTimeout(c.w.Ctx, simulation.Patience)
	defer cancel()
	complaint := errors.New("there was no event")
	err := c.follow(ctx, func(string) bool {
		complaint = check()
		return complaint != nil
	})
	if complaint != nil {
		c.w.T.Fatalf("%s: %v (the stream of events ended with %v)", what, complaint, err)
	}
}

// open asks for a path with the token. The caller closes the answer.
func (c *console) open(ctx context.Context, path string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.root+path, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+c.token)
	return c.client.Do(request)
}

// follow calls do for the text of each event, while that returns true.
func (c *console) follow(ctx context.Context, do func(event string) bool) error {
	response, err := c.open(ctx, prefix+"/events")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	var event bytes.Buffer
	for lines.Scan() {
		if line := lines.Text(); line != "" {
			event.WriteString(line + "\n")
			continue
		}
		text := event.String()
		event.Reset()
		if strings.HasPrefix(text, ":") {
			continue // a comment
		}
		if err := c.document.check(response.Request, &answer{response.StatusCode, response.Header, []byte(text)}); err != nil {
			return err
		}
		if !do(text) {
			return nil
		}
	}
	return errors.Join(errors.New("the console ended the stream"), lines.Err())
}

// These are the parts of answers that tests look at.
type (
	summary struct {
		Addresses, Waiting, Nodes, Pools int
		Full                             []string
		Missing                          map[string]string
		Everything                       bool
	}
	podName struct{ Namespace, Name string }
	address struct {
		Address, State, Pool, Node, Note, UID, ResourceVersion string
		Pod                                                    *podName
		Since, CoolsUntil                                      *time.Time
	}
	page struct {
		Addresses []address
		Next      string
	}
	pool struct {
		Name                                    string
		Capacity                                uint64
		Held, Retained, Reserved, Cooling, Free uint64
	}
	poolList    struct{ Pools []pool }
	waitingList struct {
		Pods []struct{ Namespace, Pod, Reason, Message string }
	}
	moment struct {
		State string
		Pod   *podName
	}
	changeList struct {
		Changes []struct {
			Address       string
			Before, After moment
		}
	}
)

// holder complains unless a pod has an address.
func (c *console) holder(addr, pod string) error {
	if a := read[address](c, "/addresses/"+addr); a.State != "Held" || a.Pod == nil || a.Pod.Name != pod {
		return fmt.Errorf("%s is %s of %+v, want pod %s to have it", addr, a.State, a.Pod, pod)
	}
	return nil
}

// hold makes an address of a pool that a pod holds, where no scheduler runs.
func hold(w *simulation.World, addr, pool, pod string) {
	w.T.Helper()
	since := metav1.Now()
	if _, err := w.Berth.FloatingIPs.Create(w.Ctx, &v1alpha1.FloatingIP{
		ObjectMeta: metav1.ObjectMeta{Name: addr},
		Spec: v1alpha1.FloatingIPSpec{
			Address: addr, Pool: pool, Node: "node1", ReleasePolicy: v1alpha1.ReleasePodDeleted, Since: &since,
			Owner: &v1alpha1.Owner{APIVersion: "v1", Kind: "Pod", Namespace: simulation.Namespace, Name: pod, UID: "u", PodName: pod},
			Pod:   &v1alpha1.PodReference{Name: pod, UID: "u"},
		},
	}, metav1.CreateOptions{}); err != nil {
		w.T.Fatal(err)
	}
}
