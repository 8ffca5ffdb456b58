// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/simulation"
)

// Answers of the API to good and bad requests, each held against the document that the API serves:
// of a viewer, on a cluster with addresses in all states.
func TestAPI(t *testing.T) {
	t.Parallel()
	w := simulation.NewWith(t, simulation.Options{Patience: 2 * time.Minute})
	addresses := populate(w)
	w.Grant("viewer-rbac.yaml", viewer)
	c := startAs(w, viewer)
	c.until("wait until the console knows all", func() error {
		s := read[summary](c, "/summary")
		if s.Addresses != addresses || s.Waiting != 1 || s.Nodes != 2 || s.Pools != 8 || len(s.Missing) > 0 || !s.Everything {
			return fmt.Errorf("%+v, want %d addresses", s, addresses)
		}
		return nil
	})
	for _, tc := range requests {
		said := c.get(prefix + tc.path)
		if said.status != cmp.Or(tc.status, http.StatusOK) {
			t.Errorf("GET %s: %d, want %d: %s", tc.path, said.status, cmp.Or(tc.status, http.StatusOK), said.body)
		}
		for _, text := range tc.says {
			if !strings.Contains(string(said.body), text) {
				t.Errorf("GET %s: want %q in %s", tc.path, text, said.body)
			}
		}
	}
	checkGate(c)
	checkPages(c, addresses)
	checkExport(c)
	checkMove(c)
	useClient(c)
	checkWriting(w, c.document)
	if unseen := c.document.unseen(); len(unseen) > 0 {
		t.Errorf("the document names answers that no request got:\n%s", strings.Join(unseen, "\n"))
	}
}

// populate makes addresses in all states, with a scheduler and a controller that go on. It returns
// how many have a FloatingIP.
func populate(w *simulation.World) (addresses int) {
	w.T.Helper()
	w.Nodes(2)
	w.Kubelet()
	w.Scheduler(simulation.SchedulerOptions{})
	w.Controller()
	of := func(subnet, gateway string) func(*v1alpha1.IPPool) {
		return func(pool *v1alpha1.IPPool) { pool.Spec.Subnet, pool.Spec.Gateway = subnet, gateway }
	}
	w.Pool("web", "10.0.70.10-10.0.70.19")
	w.Pool("tiny", "10.0.70.8")
	w.Pool("off", "10.0.70.60-10.0.70.63", func(pool *v1alpha1.IPPool) { pool.Spec.Disabled = true })
	w.Pool("rest", "10.0.70.100-10.0.70.103", func(pool *v1alpha1.IPPool) { pool.Spec.Cooldown = &metav1.Duration{Duration: time.Hour} })
	w.Pool("big", "10.64.0.0/16", of("10.64.0.0/16", "10.64.0.1"), func(pool *v1alpha1.IPPool) { pool.Spec.VLAN = 70 })
	w.Pool("six", "fd00:70::10-fd00:70::1f", of("fd00:70::/64", "fd00:70::1"))
	w.Pool("vast", "fd00:71::-fd00:71::ffff:ffff:ffff:ffff", of("fd00:71::/64", ""))
	w.RetainForSet("kept", 2)
	w.Create(simulation.NewPods("web", 5, simulation.FromPools("web"))...)
	w.Create(simulation.NewPod("six", simulation.FromPools("six"), simulation.Annotated(v1alpha1.AnnotationFamilies, "IPv6")))
	w.Create(simulation.NewPod("large", simulation.FromPools("big")), simulation.NewPod("resting", simulation.FromPools("rest")))
	w.Occupy("tiny")
	w.Bound("web-0", "web-1", "web-2", "web-3", "web-4", "six", "large", "resting")
	w.Delete("resting")
	w.Reserve("10.0.70.19")
	simulation.Patch(w, w.Berth.FloatingIPs, "10.0.70.19", `{"metadata":{"annotations":{%q:"the <b>old</b> router"}}}`, v1alpha1.AnnotationReason)
	w.Claim("shop", v1alpha1.IPClaimSpec{Size: 2})
	w.Create(simulation.NewPod("second", simulation.FromPools("tiny")))
	w.Refused("second", "tiny")
	return 5 + 1 + 1 + 1 + 1 + 2 + 1 // web, six, big, rest, tiny, kept, reserved
}

// requests are good and bad ones, below the prefix. Status 0 is 200.
var requests = []struct {
	path   string
	status int
	says   []string
}{
	{path: "/summary", says: []string{`"family":"IPv4"`, `"family":"IPv6"`, `"full":["tiny"]`, `"waiting":1`}},
	{path: "/summary?q=web", status: 400, says: []string{`there is no parameter \"q\" here`}},
	{path: "/pools", says: []string{`"name":"big"`, `"vlan":70`, `"disabled":true`, `"capacity":9223372036854775807`}},
	{path: "/pools?limit=3", status: 400},
	{path: "/pools/web", says: []string{`"capacity":10`, `"held":5`, `"reserved":1`, `"free":4`, `"ready":"True"`}},
	{path: "/pools/rest", says: []string{`"cooling":1`}},
	{path: "/pools/kept", says: []string{`"retained":2`}},
	{path: "/pools/wub", status: 404, says: []string{"there is no IPPool of this name"}},
	{path: "/pools/web?x=1", status: 400},
	{path: "/pools/web/map", says: []string{`"block":1`, "#####"}},
	{path: "/pools/big/map", says: []string{`"block":64,"rows":[{"from":"10.64.0.2","cells":"0...`}},
	{path: "/pools/vast/map", status: 404, says: []string{"too large", "free ranges"}},
	{path: "/pools/wub/map", status: 404},
	{path: "/pools/web/free", says: []string{`"free":4`, `"ranges":["10.0.70.15-10.0.70.18"]`}},
	{path: "/pools/big/free?limit=1", says: []string{`"ranges":["10.64.0.`}},
	{path: "/pools/off/free", says: []string{`"free":0`, `"ranges":[]`}},
	{path: "/pools/wub/free", status: 404},
	{path: "/pools/web/free?limit=0", status: 400, says: []string{"write a number from 1 to 1000"}},
	{path: "/addresses", says: []string{`"address":"10.0.70.8"`, `"address":"fd00:70::`}},
	{path: "/addresses?limit=0", status: 400, says: []string{`limit \"0\": write a number from 1 to 1000`}},
	{path: "/addresses?limit=-1", status: 400},
	{path: "/addresses?limit=1001", status: 400},
	{path: "/addresses?limit=ten", status: 400},
	{path: "/addresses?limit=1&limit=2", status: 400, says: []string{"given 2 times"}},
	{path: "/addresses?pools=web", status: 400, says: []string{`there is no parameter \"pools\" here`}},
	{path: "/addresses?%zz", status: 400},
	{path: "/addresses?sort=colour", status: 400, says: []string{"address, since, pod"}},
	{path: "/addresses?order=up", status: 400},
	{path: "/addresses?state=held", status: 400, says: []string{"Held, Retained, Cooling, Reserved"}},
	{path: "/addresses?after=nonsense", status: 400, says: []string{"begin with the first page"}},
	{path: "/addresses?after=e30", status: 400, says: []string{"begin with the first page"}},
	{path: "/addresses?q=" + strings.Repeat("x", 254), status: 400, says: []string{"q is 254 bytes long: write at most 253"}},
	{path: "/addresses?q=nobody-has-this", says: []string{`"addresses":[]`}},
	{path: "/addresses?pool=wub", says: []string{`"addresses":[]`}},
	{path: "/addresses?q=10.0.70.8", says: []string{`"name":"tiny-first"`}},
	{path: "/addresses?q=10.64.0.0/16", says: []string{`"name":"large"`}},
	{path: "/addresses?q=10.64.", says: []string{`"name":"large"`}},
	{path: "/addresses?state=Reserved", says: []string{"the \\u003cb\\u003eold\\u003c/b\\u003e router"}},
	{path: "/addresses?namespace=default&pod=six", says: []string{`"address":"fd00:70::`}},
	{path: "/addresses?owner=kept&state=Retained", says: []string{`"address":"10.0.70.200"`, `"address":"10.0.70.201"`}},
	{path: "/addresses/10.0.70.8", says: []string{`"state":"Held"`, `"name":"tiny-first"`, `"node":"node`}},
	{path: "/addresses/10.0.70.19", says: []string{`"state":"Reserved"`}},
	{path: "/addresses/10.0.70.18", says: []string{`"state":"Free"`}},
	{path: "/addresses/10.0.70.1", says: []string{`"state":"Gateway"`}},
	{path: "/addresses/10.0.70.0", says: []string{`"state":"Unusable"`}},
	{path: "/addresses/10.0.70.61", says: []string{`"state":"Disabled"`}},
	{path: "/addresses/10.0.70.250", says: []string{`"state":"Unlisted"`}},
	{path: "/addresses/192.0.2.1", says: []string{`"state":"Outside"`}},
	{path: "/addresses/fd00:70:0:0::10", says: []string{`"address":"fd00:70::10"`}},
	{path: "/addresses/10.0.70", status: 400, says: []string{"is no address", "write 10.0.70.2"}},
	{path: "/addresses/10.0.70.1-10.0.70.9", status: 400, says: []string{"is 9 addresses: name one"}},
	{path: "/addresses/fe80::1%25eth0", status: 400, says: []string{"no zone"}},
	{path: "/addresses/10.0.70.8/why", says: []string{"tiny-first", "kubectl berth trace 10.0.70.8"}},
	{path: "/addresses/10.0.70.200/why", says: []string{"kubectl berth release 10.0.70.200"}},
	{path: "/addresses/192.0.2.1/why", says: []string{`"commands":[]`}},
	{path: "/addresses/x/why", status: 400},
	{path: "/waiting", says: []string{`"pod":"second"`, `"asks":1`, `"reason":"Unschedulable"`, "tiny"}},
	{path: "/waiting?namespace=default", status: 400},
	{path: "/nodes", says: []string{`"name":"node1"`, `"name":"node2"`, `"ready":"True"`}},
	{path: "/nodes?limit=1", status: 400},
	{path: "/changes"},
	{path: "/changes?limit=0", status: 400},
	{path: "/export.csv", says: []string{"address,subnet,state,", "10.0.70.19,", ",Reserved,"}},
	{path: "/export.csv?pool=web", status: 400},
	{path: "/addresses.txt", says: []string{"10.0.70.8\n", "10.0.70.201\n", "fd00:70::"}},
	{path: "/addresses.txt?namespace=default&kind=StatefulSet&owner=kept&family=IPv4", says: []string{"10.0.70.200\n10.0.70.201\n"}},
	{path: "/addresses.txt?owner=kept", status: 400, says: []string{"give namespace and kind, too"}},
	{path: "/addresses.txt?namespace=", status: 400, says: []string{"leave it out"}},
	{path: "/addresses.txt?family=4", status: 400, says: []string{"IPv4, IPv6"}},
	{path: "/addresses.txt?node=node1", status: 400},
	{path: "/events?q=web", status: 400},
	{path: "/openapi.yaml?format=json", status: 400},
	{path: "/openapi.json", status: 404, says: []string{"/api/v1/openapi.yaml"}},
	{path: "/claims", says: []string{`"namespace":"default","name":"shop","spec":{"size":2`}},
	{path: "/claims?q=shop", status: 400},
	{path: "/claims/default/shop", says: []string{`"addresses":[]`}},
	{path: "/claims/default/none", status: 404, says: []string{"there is no IPClaim of this name that you may see"}},
	{path: "/services", says: []string{`{"services":[]}`}},
	{path: "/services?q=shop", status: 400},
	{path: "/bgppeers", says: []string{`{"peers":[]}`}},
	{path: "/bgppeers?q=shop", status: 400},
	{path: "/", status: 404},
	{path: "/pools/", status: 404},
	{path: "/addresses/10.0.70.8/history", status: 404},
}

// checkGate sees that nobody gets in without the token, by the name of another host, or to write.
func checkGate(c *console) {
	t := c.w.T
	t.Helper()
	expect := func(said *answer, what string, status int, text string) {
		t.Helper()
		if said.status != status || !strings.Contains(string(said.body), text) {
			t.Errorf("%s: %d, want %d with %q: %s", what, said.status, status, text, said.body)
		}
	}
	for _, path := range c.document.paths(map[string]string{"pool": "web", "address": "10.0.70.8", "namespace": "default", "claim": "shop"}) {
		expect(c.ask(http.MethodGet, path, func(r *http.Request) { r.Header.Del("Authorization") }), path+" without a token", http.StatusUnauthorized, "open the URL that kubectl berth console printed")
	}
	for path, methods := range c.document.methods(map[string]string{"pool": "web", "address": "10.0.70.8", "namespace": "default", "claim": "shop"}) {
		if slices.Contains(methods, http.MethodGet) {
			methods = slices.Sorted(slices.Values(append(methods, http.MethodHead)))
		}
		for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			switch {
			case !slices.Contains(methods, method):
				said := c.ask(method, path, nil)
				expect(said, method+" "+path, http.StatusMethodNotAllowed, "does not answer "+method)
				if allow, want := said.header.Get("Allow"), strings.Join(methods, ", "); allow != want {
					t.Errorf("%s %s: Allow: %q, want %q", method, path, allow, want)
				}
			case method != http.MethodGet:
				expect(c.ask(method, path, nil), method+" "+path, http.StatusForbidden, "kubectl berth console --writes")
			}
		}
	}
	const path = prefix + "/summary"
	expect(c.ask(http.MethodGet, path, func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+c.token[1:]) }), "a wrong token", http.StatusUnauthorized, "")
	expect(c.ask(http.MethodGet, path, func(r *http.Request) { r.Host = "berth.example" }), "the name of another site", http.StatusMisdirectedRequest, "not berth.example")
	expect(c.ask(http.MethodHead, path, nil), "HEAD", http.StatusOK, "")
	list := c.get(prefix + "/addresses.txt")
	expect(c.ask(http.MethodGet, prefix+"/addresses.txt", func(r *http.Request) { r.Header.Set("If-None-Match", list.header.Get("ETag")) }), "the same list again", http.StatusNotModified, "")
	for name, want := range map[string]string{
		"Content-Security-Policy": "default-src 'none'", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
	} {
		if got := c.get(path).header.Get(name); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

// checkPages sees that in each order the pages together have each address once.
func checkPages(c *console, addresses int) {
	t := c.w.T
	t.Helper()
	// next returns the parameter after of the second page.
	next := func(parameters string) string { return read[page](c, "/addresses?limit=3&"+parameters).Next }
	for _, sort := range []string{"address", "since", "pod", "namespace", "owner", "node"} {
		var orders [2][]string
		for i, order := range []string{"asc", "desc"} {
			parameters, after := "sort="+sort+"&order="+order, ""
			for {
				got := read[page](c, "/addresses?limit=3&"+parameters+"&after="+after)
				for _, one := range got.Addresses {
					orders[i] = append(orders[i], one.Address)
				}
				if after = got.Next; after == "" {
					break
				}
				if len(got.Addresses) != 3 {
					t.Fatalf("%s: a page that is not the last has %d addresses", parameters, len(got.Addresses))
				}
			}
		}
		slices.Reverse(orders[1])
		if !slices.Equal(orders[0], orders[1]) {
			t.Errorf("by %s: ascending %v, descending from its end %v", sort, orders[0], orders[1])
		}
		byAddress := slices.SortedFunc(slices.Values(orders[0]), func(a, b string) int { return netip.MustParseAddr(a).Compare(netip.MustParseAddr(b)) })
		if len(slices.Compact(byAddress)) != addresses || len(orders[0]) != addresses {
			t.Errorf("by %s there are %v, want %d addresses", sort, orders[0], addresses)
		}
		if sort == "address" && !slices.Equal(orders[0], byAddress) {
			t.Errorf("by address: %v", orders[0])
		}
		// The place in one order is none in another.
		if said := c.get(prefix + "/addresses?sort=" + sort + "&order=desc&after=" + next("sort="+sort)); said.status != http.StatusBadRequest {
			t.Errorf("after of another order: %d: %s", said.status, said.body)
		}
	}
	if past := read[page](c, "/addresses?q=10.0.70.8&after="+next("q=10.0.70.")); len(past.Addresses) != 0 || past.Next != "" {
		t.Errorf("the page past the end has %+v", past)
	}
}

// checkExport compares the file with that of the command.
func checkExport(c *console) {
	t := c.w.T
	t.Helper()
	words := append(kubectl(c.w, c.w.File("kubeconfig-*", c.Kubeconfig())), "berth", "export")
	want, err := exec.CommandContext(c.w.Ctx, "/usr/bin/env", words...).Output()
	if err != nil {
		t.Fatalf("kubectl berth export: %v", err)
	}
	if got := c.get(prefix + "/export.csv").body; !bytes.Equal(got, want) {
		t.Errorf("export.csv is\n%s\nand kubectl berth export prints\n%s", got, want)
	}
}

// checkMove has an address move to a pod that waits for it, and follows that.
func checkMove(c *console) {
	w := c.w
	w.T.Helper()
	const addr = "10.0.70.8"
	if err := c.holder(addr, "tiny-first"); err != nil {
		w.T.Fatal(err)
	}
	before, after := make(chan string, 1), make(chan string)
	ctx, cancel := context.WithTimeout(w.Ctx, simulation.Patience)
	defer cancel()
	streamed := make(chan error, 1)
	go func() {
		streamed <- c.follow(ctx, func(event string) bool {
			select {
			case before <- event: // the first comes at once
				return true
			case after <- event:
				return false
			case <-ctx.Done():
				return false
			}
		})
	}()
	first, ok := receive(ctx, before)
	if !ok {
		w.T.Fatal("no event came at once")
	}
	w.Delete("tiny-first")
	if next, ok := receive(ctx, after); !ok || next == first {
		w.T.Errorf("after %q the next event is %q", first, next)
	}
	if err := <-streamed; err != nil {
		w.T.Error(err)
	}
	c.until("wait until the console shows that the address moved", func() error {
		waiting := read[waitingList](c, "/waiting").Pods
		return errors.Join(c.holder(addr, "second"), complainIf(len(waiting) > 0, "there wait %+v", waiting))
	})
	moments := map[string]bool{}
	for _, change := range read[changeList](c, "/changes").Changes {
		for _, m := range []moment{change.Before, change.After} {
			if change.Address == addr && m.Pod != nil {
				moments[m.Pod.Name] = true
			}
		}
	}
	if !moments["tiny-first"] || !moments["second"] {
		w.T.Errorf("the changes of %s name the pods %v", addr, moments)
	}
}

func receive(ctx context.Context, from <-chan string) (string, bool) {
	select {
	case text := <-from:
		return text, true
	case <-ctx.Done():
		return "", false
	}
}

func complainIf(wrong bool, format string, args ...any) error {
	if !wrong {
		return nil
	}
	return fmt.Errorf(format, args...)
}
