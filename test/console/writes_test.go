// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/proxy"
)

// seen is an address as a user saw it.
type seen struct {
	Address         string `json:"address"`
	UID             string `json:"uid"`
	ResourceVersion string `json:"resourceVersion"`
}

// release is the outcome for an address.
type release struct{ Address, Outcome, Reason, Note string }

func (r release) String() string { return cmp.Or(r.Reason, r.Outcome) }

type releaseList struct{ Releases []release }

// send makes a request with content, as a program does.
func (c *console) send(method, path string, content any, change func(*http.Request)) *answer {
	c.w.T.Helper()
	text, ok := content.([]byte)
	if !ok {
		var err error
		if text, err = json.Marshal(content); err != nil {
			c.w.T.Fatal(err)
		}
	}
	return c.ask(method, prefix+path, func(r *http.Request) {
		r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil }
		r.Body, _ = r.GetBody()
		r.ContentLength = int64(len(text))
		r.Header.Set("Content-Type", "application/json")
		if change != nil {
			change(r)
		}
	})
}

// release asks for addresses to be freed, and returns the outcomes.
func (c *console) release(dryRun bool, of ...seen) []release {
	c.w.T.Helper()
	said := c.send(http.MethodPost, "/releases", map[string]any{"addresses": of, "dryRun": dryRun}, nil)
	if said.status != http.StatusOK {
		c.w.T.Fatalf("POST /releases: %d %s", said.status, said.body)
	}
	var list releaseList
	if err := json.Unmarshal(said.body, &list); err != nil {
		c.w.T.Fatal(err)
	}
	return list.Releases
}

// now returns addresses as they are in the API server.
func now(w *simulation.World, addrs ...string) []seen {
	w.T.Helper()
	var all []seen
	for _, addr := range addrs {
		ip, err := w.Berth.FloatingIPs.Get(w.Ctx, addr, metav1.GetOptions{})
		if err != nil {
			w.T.Fatal(err)
		}
		all = append(all, seen{addr, string(ip.UID), ip.ResourceVersion})
	}
	return all
}

// objects is all that a console could change. The controller writes the status of pools and claims
// meanwhile.
func objects(w *simulation.World) string {
	w.T.Helper()
	ips, err := w.Berth.FloatingIPs.List(w.Ctx, metav1.ListOptions{})
	if err != nil {
		w.T.Fatal(err)
	}
	pools, err := w.Berth.IPPools.List(w.Ctx, metav1.ListOptions{})
	if err != nil {
		w.T.Fatal(err)
	}
	claims, err := w.Berth.IPClaims(metav1.NamespaceAll).List(w.Ctx, metav1.ListOptions{})
	if err != nil {
		w.T.Fatal(err)
	}
	var all []string
	add := func(of metav1.Object) {
		all = append(all, fmt.Sprintf("%T %s/%s %s %d %v %v %v", of, of.GetNamespace(), of.GetName(), of.GetUID(), of.GetGeneration(), of.GetLabels(), of.GetAnnotations(), of.GetDeletionTimestamp()))
	}
	for i := range ips.Items {
		add(&ips.Items[i])
	}
	for i := range pools.Items {
		add(&pools.Items[i])
	}
	for i := range claims.Items {
		add(&claims.Items[i])
	}
	return strings.Join(all, "\n")
}

// unchanged complains if something does a write.
func unchanged(w *simulation.World, what string, something func()) {
	w.T.Helper()
	before := objects(w)
	something()
	if after := objects(w); after != before {
		w.T.Errorf("%s changed the cluster from\n%s\nto\n%s", what, before, after)
	}
}

// What a console in the cluster writes it writes as the user who asks, and only if the API server
// lets that user, and only if the object is as the user saw it.
func TestWrites(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{Controllers: true})
	plant(w)
	cluster := startCluster(w, map[string]any{"enabled": true, "writes": true})
	users := map[string]*console{
		"viewer": cluster.user("default", "ann"), "operator": cluster.user("default", "olga"), red: cluster.user(red+"-ns", "roe"), "owner": cluster.user(red+"-ns", "rex"),
		"planner": cluster.user("default", "pam"),
		"poor":    cluster.user("default", "pip"), "nobody": cluster.with(""), "stranger": cluster.with("x.y.z"),
	}
	viewers, operators := w.ExampleRoles("viewer-rbac.yaml"), w.ExampleRoles("operator-rbac.yaml")
	for _, role := range viewers {
		w.Bind(role, proxy.ServiceAccount("default", "ann").UserName)
		w.Bind(role, proxy.ServiceAccount("default", "pam").UserName)
	}
	for _, role := range slices.Concat(viewers, operators) {
		w.Bind(role, proxy.ServiceAccount("default", "olga").UserName)
	}
	bind(w, red+"-ns", "roe")
	bind(w, red+"-ns", "rex")
	// Somebody may free the retained address of the own namespace, and no other.
	const own, others, held, reserved, nowhere = "10.0.70.51", "10.0.70.52", "10.0.70.31", "10.0.70.60", "10.0.70.20"
	if _, err := w.Kube.RbacV1().ClusterRoles().Create(w.Ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "own"}, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{v1alpha1.GroupName}, Resources: []string{"floatingips"}, ResourceNames: []string{own}, Verbs: []string{"get", "delete"},
	}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.Bind("own", proxy.ServiceAccount(red+"-ns", "rex").UserName)
	asked := append(now(w, own, others, held, reserved), seen{nowhere, "u", "1"})

	// Which user may do what, in which namespace. The answers of the API to a user are those of the
	// API server.
	for name, want := range map[string][]string{
		"viewer": {"Forbidden", "Forbidden", "Held", "Reserved", "free"}, "operator": {"to free", "to free", "Held", "Reserved", "free"},
		red: {"Forbidden", "Forbidden", "Forbidden", "Forbidden", "Forbidden"}, "owner": {"to free", "Forbidden", "Forbidden", "Forbidden", "Forbidden"},
	} {
		unchanged(w, "a dry run of "+name, func() {
			got := users[name].release(true, asked...)
			for i, r := range got {
				if r.String() != want[i] || r.Address != asked[i].Address {
					t.Errorf("%s: %s becomes %q (%s), want %q", name, asked[i].Address, r, r.Note, want[i])
				}
				if account := "system:serviceaccount:"; r.Reason == "Forbidden" && (!strings.Contains(r.Note, account) || !strings.Contains(r.Note, "may not")) {
					t.Errorf("%s: %s is left: %q", name, r.Address, r.Note)
				}
			}
		})
		if name != "operator" && name != "owner" {
			unchanged(w, "a release of "+name, func() { users[name].release(false, asked...) })
		}
	}
	for name, status := range map[string]int{"poor": http.StatusForbidden, "nobody": http.StatusUnauthorized, "stranger": http.StatusUnauthorized} {
		unchanged(w, name, func() {
			if said := users[name].send(http.MethodPost, "/releases", map[string]any{"addresses": asked}, nil); said.status != status {
				t.Errorf("%s: %d %s", name, said.status, said.body)
			}
		})
	}
	checkObjectRights(w, users)
	checkForged(cluster, users["operator"].token, asked)
	checkChanged(cluster, users["operator"], own)

	// One address in a request is freed, and the others of it are not.
	asked = append(now(w, own, others, held, reserved), seen{nowhere, "u", "1"})
	if got := fmt.Sprint(users["owner"].release(false, asked...)); got != "[freed Forbidden Forbidden Forbidden Forbidden]" {
		t.Errorf("the owner's release: %s", got)
	}
	if got := fmt.Sprint(users["operator"].release(false, asked...)); got != "[free freed Held Reserved free]" {
		t.Errorf("the operator's release: %s", got)
	}
	for _, addr := range []string{own, others} {
		users["viewer"].until("wait until the console knows", func() error {
			a := read[address](users["viewer"], "/addresses/"+addr)
			return complainIf(a.State != "Free", "%+v", a)
		})
	}
	cluster.onlyReads()

	// Another console of the same cluster, with the chart's default.
	reader := startCluster(w, map[string]any{"enabled": true})
	unchanged(w, "a console that only reads", func() {
		said := reader.with(users["operator"].token).send(http.MethodPost, "/releases", map[string]any{"addresses": now(w, held)}, nil)
		if said.status != http.StatusForbidden || !strings.Contains(string(said.body), "console.writes to true") {
			t.Errorf("a console that only reads answers %d %s", said.status, said.body)
		}
	})
	reader.onlyReads()
	if calls := reader.Seen(func(call proxy.Call) bool { return call.WithToken }); len(calls) > 0 {
		t.Errorf("a console that only reads uses the token of its user: %+v", calls)
	}
}

// checkObjectRights sees which user may write pools and claims, in which namespace.
func checkObjectRights(w *simulation.World, users map[string]*console) {
	t := w.T
	t.Helper()
	rule := func(resource string) []rbacv1.PolicyRule {
		return []rbacv1.PolicyRule{{APIGroups: []string{v1alpha1.GroupName}, Resources: []string{resource}, Verbs: []string{"create", "patch", "delete"}}}
	}
	if _, err := w.Kube.RbacV1().ClusterRoles().Create(w.Ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "planner"}, Rules: rule("ippools")}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.Bind("planner", proxy.ServiceAccount("default", "pam").UserName)
	if _, err := w.Kube.RbacV1().Roles(red+"-ns").Create(w.Ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "claims"}, Rules: rule("ipclaims")}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Kube.RbacV1().RoleBindings(red+"-ns").Create(w.Ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "claims"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "claims"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: red + "-ns", Name: "rex"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, tenant := range []string{red, blue} {
		claim := &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Name: "shop"}, Spec: v1alpha1.IPClaimSpec{Size: 2, Pools: []string{"web"}}}
		if _, err := w.Berth.IPClaims(tenant+"-ns").Create(w.Ctx, claim, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	size, off := map[string]any{"size": 3, "pools": []string{"web"}}, map[string]any{"disabled": true}
	pool := map[string]any{"subnet": "10.0.71.0/24", "ranges": []string{"10.0.71.2-10.0.71.9"}}
	requests := []struct {
		method, path string
		content      map[string]any
		done         int
		by           []string
	}{
		{http.MethodPost, "/pools", map[string]any{"name": "new", "spec": pool}, http.StatusCreated, []string{"planner"}},
		{http.MethodPatch, "/pools/web", map[string]any{"spec": off}, http.StatusOK, []string{"planner"}},
		{http.MethodDelete, "/pools/full", nil, http.StatusNoContent, []string{"planner"}},
		{http.MethodPost, "/claims", map[string]any{"namespace": red + "-ns", "name": "new", "spec": size}, http.StatusCreated, []string{"owner"}},
		{http.MethodPatch, "/claims/" + red + "-ns/shop", map[string]any{"spec": size}, http.StatusOK, []string{"owner"}},
		{http.MethodDelete, "/claims/" + red + "-ns/shop", nil, http.StatusNoContent, []string{"owner"}},
		{http.MethodPost, "/claims", map[string]any{"namespace": blue + "-ns", "name": "new", "spec": size}, http.StatusCreated, nil},
		{http.MethodPatch, "/claims/" + blue + "-ns/shop", map[string]any{"spec": size}, http.StatusOK, nil},
		{http.MethodDelete, "/claims/" + blue + "-ns/shop", nil, http.StatusNoContent, nil},
	}
	for name, user := range users {
		for _, request := range requests {
			want := request.done
			switch {
			case user.token == "" || name == "stranger":
				want = http.StatusUnauthorized
			case !slices.Contains(request.by, name):
				want = http.StatusForbidden
			}
			for _, dryRun := range []bool{true, false} {
				if !dryRun && want < 400 {
					continue
				}
				path, content := request.path, request.content
				if content == nil {
					path += fmt.Sprintf("?dryRun=%v", dryRun)
				} else {
					content["dryRun"] = dryRun
				}
				unchanged(w, name, func() {
					said := user.send(request.method, path, content, nil)
					if said.status != want || want == http.StatusForbidden && !strings.Contains(string(said.body), "may ") {
						t.Errorf("%s: %s %s: %d, want %d: %s", name, request.method, path, said.status, want, said.body)
					}
				})
			}
		}
	}
}

// checkObjects writes a pool and a claim as a user who may.
func checkObjects(c *console) {
	w := c.w
	w.T.Helper()
	type object struct {
		Namespace, Name, UID, ResourceVersion string
		Spec                                  map[string]any
	}
	do := func(method, path string, content any, status int, says string) (o object) {
		w.T.Helper()
		said := c.send(method, path, content, nil)
		if said.status != status || !strings.Contains(string(said.body), says) {
			w.T.Errorf("%s %s: %d, want %d with %q: %s", method, path, said.status, status, says, said.body)
		}
		if said.status < 300 && len(said.body) > 0 {
			if err := json.Unmarshal(said.body, &o); err != nil {
				w.T.Fatal(err)
			}
		}
		return o
	}
	type fields = map[string]any
	for _, tc := range []struct {
		kind, one    string
		identity     fields
		spec, change fields
		wrong        fields
		complaint    string
	}{
		{"/pools", "/pools/plan", fields{"name": "plan"}, fields{"subnet": "10.0.90.0/24", "ranges": []string{"10.0.90.2-10.0.90.9"}}, fields{"ranges": []string{"10.0.90.2-10.0.90.30"}}, fields{"vlan": 5000}, "4094"},
		{"/claims", "/claims/default/plan", fields{"namespace": "default", "name": "plan"}, fields{"size": 2, "preallocate": true, "pools": []string{"plan"}}, fields{"size": 4}, fields{"size": -1}, "spec.size"},
	} {
		fresh := func(spec fields, more ...string) fields {
			all := fields{"spec": spec}
			maps.Copy(all, tc.identity)
			for _, name := range more {
				all[name] = true
			}
			return all
		}
		unchanged(w, "a dry run or a mistake", func() {
			do(http.MethodPost, tc.kind, fresh(tc.spec, "dryRun"), http.StatusCreated, `"name":"plan"`)
			do(http.MethodPost, tc.kind, fresh(tc.spec, "dryrun2"), http.StatusBadRequest, "unknown field")
			do(http.MethodPost, tc.kind, fresh(fields{"rangez": "x"}), http.StatusBadRequest, "rangez")
			do(http.MethodPost, tc.kind, fresh(nil), http.StatusBadRequest, "write the fields")
			do(http.MethodPost, tc.kind, fields{"spec": tc.spec, "name": "a/b", "namespace": tc.identity["namespace"]}, http.StatusBadRequest, "is no name")
			do(http.MethodPatch, tc.one, fields{"spec": tc.change}, http.StatusNotFound, "not found")
			do(http.MethodDelete, tc.one, nil, http.StatusNotFound, "not found")
		})
		made := do(http.MethodPost, tc.kind, fresh(tc.spec), http.StatusCreated, `"name":"plan"`)
		do(http.MethodPost, tc.kind, fresh(tc.spec), http.StatusConflict, "already exists")
		old := do(http.MethodPatch, tc.one, fields{"spec": tc.change, "uid": made.UID}, http.StatusOK, `"name":"plan"`)
		for name, value := range tc.change {
			if got := old.Spec[name]; fmt.Sprint(got) != fmt.Sprint(value) {
				w.T.Errorf("%s: %s is %v, want %v", tc.one, name, got, value)
			}
		}
		same := func() string {
			return fmt.Sprint(do(http.MethodPatch, tc.one, fields{"spec": fields{}, "dryRun": true}, http.StatusOK, "").Spec)
		}
		before := same()
		do(http.MethodPatch, tc.one, fields{"spec": tc.spec, "dryRun": true}, http.StatusOK, `"name":"plan"`)
		do(http.MethodPatch, tc.one, fields{"spec": tc.spec, "resourceVersion": made.ResourceVersion}, http.StatusConflict, "modified")
		do(http.MethodPatch, tc.one, fields{"spec": tc.spec, "uid": "another"}, http.StatusConflict, "has another UID")
		do(http.MethodPatch, tc.one, fields{"spec": tc.wrong}, http.StatusUnprocessableEntity, tc.complaint)
		do(http.MethodPatch, tc.one, fields{"spec": fields{"rangez": "x"}}, http.StatusUnprocessableEntity, "rangez")
		do(http.MethodPatch, tc.one, []byte(`{"spec":null}`), http.StatusBadRequest, "write the fields")
		do(http.MethodDelete, tc.one+"?dryRun=true", nil, http.StatusNoContent, "")
		do(http.MethodDelete, tc.one+"?dryRun=yes", nil, http.StatusBadRequest, "true, false")
		do(http.MethodDelete, tc.one+"?dryrun=true", nil, http.StatusBadRequest, "no parameter")
		do(http.MethodDelete, tc.one+"?uid=another", nil, http.StatusConflict, "UID")
		do(http.MethodDelete, tc.one+"?resourceVersion="+made.ResourceVersion, nil, http.StatusConflict, "ResourceVersion")
		if after := same(); after != before {
			w.T.Errorf("%s was %s and is %s", tc.one, before, after)
		}
	}
	c.until("wait until the console knows the pool", func() error {
		p := c.get(prefix + "/pools/plan")
		return complainIf(p.status != http.StatusOK || !strings.Contains(string(p.body), `"capacity":29`), "%d %s", p.status, p.body)
	})
	for _, path := range []string{"/claims/default/plan", "/pools/plan"} {
		do(http.MethodDelete, path, nil, http.StatusNoContent, "")
	}
}

// checkForged sees that pages of other sites cannot write with the cookie of a user, and that no
// request is half understood.
func checkForged(c *inCluster, token string, asked []seen) {
	t := c.w.T
	t.Helper()
	browser := func(dryRun bool, headers map[string]string) *answer {
		return c.with("").send(http.MethodPost, "/releases", map[string]any{"addresses": asked, "dryRun": dryRun}, func(r *http.Request) {
			r.Header.Del("Authorization")
			r.AddCookie(&http.Cookie{Name: "__Host-berth-console", Value: token})
			for name, value := range headers {
				r.Header.Set(name, value)
			}
		})
	}
	for name, headers := range map[string]map[string]string{
		"another site": {"Sec-Fetch-Site": "cross-site"}, "a neighbour": {"Sec-Fetch-Site": "same-site", "Origin": c.root}, "another origin": {"Origin": "https://evil.example"}, "no origin": {"Origin": "null"},
	} {
		unchanged(c.w, name, func() {
			if said := browser(false, headers); said.status != http.StatusForbidden || !strings.Contains(string(said.body), "another site") {
				t.Errorf("a page of %s writes: %d %s", name, said.status, said.body)
			}
		})
	}
	// The pages' form, too.
	for name, headers := range map[string]map[string]string{"another site": {"Sec-Fetch-Site": "cross-site"}, "another origin": {"Origin": "https://evil.example"}} {
		unchanged(c.w, name, func() {
			said := c.browse(http.MethodPost, "/release", token, func(r *http.Request) {
				text := url.Values{"seen": {strings.Join([]string{asked[0].Address, asked[0].UID, asked[0].ResourceVersion}, " ")}, "confirmed": {"yes"}}.Encode()
				r.Body, r.ContentLength = readCloser(text), int64(len(text))
				r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
				for name, value := range headers {
					r.Header.Set(name, value)
				}
			})
			if said.status != http.StatusForbidden || !strings.Contains(string(said.body), "another site") {
				t.Errorf("a form of %s: %d %s", name, said.status, said.body)
			}
		})
	}
	user := c.with(token)
	many := make([]seen, 1001)
	for i := range many {
		many[i] = asked[0]
	}
	text := func(format string, values ...any) []byte { return fmt.Appendf(nil, format, values...) }
	for name, tc := range map[string]struct {
		content any
		status  int
		says    string
	}{
		"no content":          {[]byte{}, http.StatusBadRequest, "EOF"},
		"no JSON":             {text("addresses"), http.StatusBadRequest, "read the content"},
		"no addresses":        {text("{}"), http.StatusBadRequest, "name from 1 to 1000"},
		"too many":            {map[string]any{"addresses": many}, http.StatusBadRequest, "1001 addresses"},
		"misspelled":          {map[string]any{"addresses": asked, "dry-run": true}, http.StatusBadRequest, `unknown field`},
		"two objects":         {text(`{"addresses":[]}{}`), http.StatusBadRequest, "more than one object"},
		"no version":          {map[string]any{"addresses": []seen{{asked[0].Address, asked[0].UID, ""}}}, http.StatusBadRequest, "lacks uid or resourceVersion"},
		"one without an UID":  {map[string]any{"addresses": []seen{asked[0], {asked[1].Address, "", asked[1].ResourceVersion}}}, http.StatusBadRequest, "lacks uid or resourceVersion"},
		"one that is none":    {map[string]any{"addresses": []seen{asked[0], {"web", "u", "1"}}}, http.StatusBadRequest, "is no address"},
		"longer than allowed": {text(`{"addresses":[],"x":%q}`, strings.Repeat("x", 1<<20)), http.StatusRequestEntityTooLarge, "longer than"},
	} {
		unchanged(c.w, name, func() {
			if said := user.send(http.MethodPost, "/releases", tc.content, nil); said.status != tc.status || !strings.Contains(string(said.body), tc.says) {
				t.Errorf("%s: %d, want %d with %q: %s", name, said.status, tc.status, tc.says, said.body)
			}
		})
	}
	unchanged(c.w, "a form", func() {
		said := user.send(http.MethodPost, "/releases", map[string]any{"addresses": asked}, func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") })
		if said.status != http.StatusUnsupportedMediaType {
			t.Errorf("content of another type: %d %s", said.status, said.body)
		}
	})
	// The console's own page may.
	if said := browser(true, map[string]string{"Sec-Fetch-Site": "same-origin", "Origin": c.root}); said.status != http.StatusOK {
		t.Errorf("the console's own page: %d %s", said.status, said.body)
	}
}

// checkChanged sees that nothing is freed that is not as the user saw it: the API server compares.
func checkChanged(c *inCluster, user *console, addr string) {
	w := c.w
	w.T.Helper()
	expect := func(what string, got []release, note string) {
		w.T.Helper()
		if got[0].Reason != "Changed" || got[0].Outcome != "left" || got[0].Note != note {
			w.T.Errorf("%s: %+v", what, got)
		}
		now(w, addr) // it is there
	}
	changes := 0
	change := func() {
		changes++
		simulation.Patch(w, w.Berth.FloatingIPs, addr, `{"metadata":{"annotations":{"test/changes":"%d"}}}`, changes)
	}
	before := now(w, addr)[0]
	change()
	expect("an address that changed", user.release(false, before), "it has changed since it was read")
	expect("another address of the same name", user.release(false, seen{addr, "another", now(w, addr)[0].ResourceVersion}), "it has changed since it was read")
	// It changes after the console has read it.
	tap := c.Tap(proxy.IsIPDelete, proxy.BeforeRequest)
	done := make(chan []release, 1)
	go func() { done <- user.release(false, now(w, addr)[0]) }()
	ctx, cancel := context.WithTimeout(w.Ctx, simulation.Patience)
	defer cancel()
	if err := tap.Wait(ctx); err != nil {
		w.T.Fatal(err)
	}
	change()
	tap.Pass()
	expect("an address that changes meanwhile", <-done, "it changed a moment ago")
}

// checkWriting frees addresses as the user of kubectl does who started the console.
func checkWriting(w *simulation.World, document *document) {
	t := w.T
	t.Helper()
	w.Grant("operator-rbac.yaml", "operator")
	w.Bind("berth-viewer", "operator")
	c := startWith(w, w.Config, as("operator"), []string{"--writes"})
	c.document = document
	c.until("wait until the console knows all", func() error {
		s := read[summary](c, "/summary")
		return complainIf(len(s.Missing) > 0, "%+v", s)
	})
	kept := read[page](c, "/addresses?pool=kept").Addresses
	if len(kept) != 2 {
		t.Fatalf("kept are %+v", kept)
	}
	asked := []seen{{kept[0].Address, kept[0].UID, kept[0].ResourceVersion}}
	unchanged(w, "a dry run", func() {
		if got := fmt.Sprint(c.release(true, asked...)); got != "[to free]" {
			t.Errorf("a dry run: %s", got)
		}
	})
	if got := fmt.Sprint(c.release(false, asked...)); got != "[freed]" {
		t.Errorf("a release: %s", got)
	}
	if said := c.send(http.MethodPost, "/releases", map[string]any{"addresses": asked}, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") }); said.status != http.StatusForbidden {
		t.Errorf("a page at another port of this machine: %d %s", said.status, said.body)
	}
	w.Bind("cluster-admin", "operator")
	checkObjects(c)
	if said := c.send(http.MethodPost, "/releases", map[string]any{}, nil); said.status != http.StatusBadRequest {
		t.Errorf("no addresses: %d %s", said.status, said.body)
	}
}
