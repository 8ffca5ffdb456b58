// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/cmd/kubectl-berth/console/access"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/register"
	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// noon is the time of all tests.
var noon = time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)

func poolOf(name, subnet, ranges string) *v1alpha1.IPPool {
	pool := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 1}, Spec: v1alpha1.IPPoolSpec{Subnet: subnet, Ranges: []string{ranges}, Cooldown: &metav1.Duration{Duration: time.Hour}}}
	pool.Status.Conditions = []metav1.Condition{{Type: v1alpha1.PoolReady, Status: metav1.ConditionTrue}}
	return pool
}

// held returns a FloatingIP that a pod of a StatefulSet has.
func held(address, pool, namespace, pod, node string) *v1alpha1.FloatingIP {
	ip := retained(address, pool, namespace, pod)
	ip.Spec.Pod, ip.Spec.LastPod, ip.Spec.Node = &v1alpha1.PodReference{Name: pod}, "", node
	return ip
}

func retained(address, pool, namespace, pod string) *v1alpha1.FloatingIP {
	since := metav1.NewTime(noon.Add(-time.Hour))
	addr := netip.MustParseAddr(address)
	return &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NameOf(addr)}, Spec: v1alpha1.FloatingIPSpec{
		Address: address, Pool: pool, Since: &since, LastPod: pod, ReleasePolicy: v1alpha1.ReleaseRetain,
		Owner: &v1alpha1.Owner{Kind: "StatefulSet", Namespace: namespace, Name: strings.TrimRight(pod, "-0123456789")},
	}}
}

func reserved(address, pool, reason string) *v1alpha1.FloatingIP {
	addr := netip.MustParseAddr(address)
	return &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NameOf(addr), Annotations: map[string]string{v1alpha1.AnnotationReason: reason}},
		Spec: v1alpha1.FloatingIPSpec{Address: address, Pool: pool, Reserved: true}}
}

// newRegister returns a register with something of everything.
func newRegister(t *testing.T) *register.Register {
	t.Helper()
	before := now
	now = func() time.Time { return noon }
	t.Cleanup(func() { now = before })
	r := register.New()
	sick := poolOf("sick", "10.0.90.0/24", "10.0.91.1")
	closed := poolOf("closed", "10.0.60.0/24", "10.0.60.2-10.0.60.9")
	closed.Spec.Disabled = true
	r.Objects.Pools.Replace([]*v1alpha1.IPPool{
		poolOf("web", "10.0.70.0/24", "10.0.70.2-10.0.70.250"), poolOf("db", "10.0.80.0/24", "10.0.80.2-10.0.80.3"), sick, closed,
		poolOf("wide", "10.8.0.0/13", "10.8.0.16-10.9.0.15"), poolOf("six", "2001:db8::/64", "2001:db8::/64"),
	})
	r.ReplaceFloatingIPs(nil)
	for _, ip := range []*v1alpha1.FloatingIP{
		held("10.0.70.2", "web", "shop", "cart-0", "node-a"), retained("10.0.70.3", "web", "shop", "cart-1"), reserved("10.0.70.4", "web", "VRRP"),
		held("10.0.80.2", "db", "bank", "ledger-0", "node-b"), retained("10.0.80.3", "db", "bank", "ledger-1"), held("10.8.0.20", "wide", "bank", "ledger-2", "node-gone"),
		held("2001:db8::7", "six", "shop", "cart-0", "node-a"),
	} {
		r.PutFloatingIP(ip)
	}
	r.PutFloatingIP(held("10.0.70.9", "web", "bank", "ledger-9", "node-b"))
	r.DeleteFloatingIP(v1alpha1.NameOf(netip.MustParseAddr("10.0.70.9")))
	r.Objects.Waiting.Replace([]*register.WaitingPod{
		{Namespace: "shop", Pod: "cart-7", Since: noon.Add(-time.Minute), Asks: 1, Scheduler: "berth-scheduler", Reason: v1.PodReasonUnschedulable, Message: "no pool has a free address"},
		{Namespace: "bank", Pod: "ledger-7", Since: noon.Add(-time.Hour), Asks: 2, Scheduler: "berth-scheduler"},
		{Namespace: "bank", Pod: "ledger-8", Since: noon.Add(-time.Hour), Asks: 2, Scheduler: v1.DefaultSchedulerName, Reason: v1.PodReasonUnschedulable, Message: "Insufficient berth.dev/ip"},
	})
	r.Objects.Nodes.Replace([]*register.Node{{Name: "node-a", Ready: "True"}, {Name: "node-b", Ready: "Unknown"}, {Name: "node-lost", Ready: "False", Lost: true}})
	waits := claimOf("bank", "ledger", 2, metav1.Condition{Type: v1alpha1.ClaimReady, Status: metav1.ConditionFalse, Reason: "NoAddress", Message: "no ledger pool has a free address"})
	large := claimOf("shop", "cart", 1, metav1.Condition{Type: v1alpha1.ClaimReady, Status: metav1.ConditionTrue},
		metav1.Condition{Type: v1alpha1.ClaimOversized, Status: metav1.ConditionTrue, Message: "the cart claim has 7 addresses"})
	r.Objects.Claims.Replace([]*v1alpha1.IPClaim{waits, large, claimOf("shop", "new", 1), claimOf("shop", "well", 1, metav1.Condition{Type: v1alpha1.ClaimReady, Status: metav1.ConditionTrue})})
	for i := range 7 {
		ip := held(fmt.Sprintf("10.8.2.%d", i), "wide", "shop", fmt.Sprintf("basket-%d", i), "node-a")
		ip.Spec.Owner.Kind, ip.Spec.Owner.Name = "IPClaim", "cart"
		r.PutFloatingIP(ip)
	}
	r.PutFloatingIP(ofService("10.8.3.1", "shop", "front"))
	r.PutFloatingIP(ofService("10.8.3.2", "bank", "teller"))
	r.PutFloatingIP(ofService("10.8.3.3", "shop", "lonely"))
	r.Objects.Assignments.Replace([]*v1alpha1.NodeAssignment{carries("node-a", "10.8.3.1"), carries("node-c", ""), carries("node-b", "10.8.3.2")})
	r.Objects.Peers.Replace([]*v1alpha1.BGPPeer{{ObjectMeta: metav1.ObjectMeta{Name: "bank-rack"}, Spec: v1alpha1.BGPPeerSpec{
		LocalASN: 65200, Peer: v1alpha1.BGPRouter{Address: "10.11.0.1", ASN: 65101}, NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"rack": "1"}},
		BFD: &v1alpha1.BGPBFD{Interval: &metav1.Duration{Duration: 300 * time.Millisecond}, Multiplier: 3}, Export: []v1alpha1.BGPExport{{Prefixes: []string{"10.8.0.0/13"}}},
	}}})
	return r
}

func claimOf(namespace, name string, size int32, conditions ...metav1.Condition) *v1alpha1.IPClaim {
	return &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: v1alpha1.IPClaimSpec{Size: size}, Status: v1alpha1.IPClaimStatus{Conditions: conditions}}
}

// ofService returns a FloatingIP that a Service has.
func ofService(address, namespace, name string) *v1alpha1.FloatingIP {
	ip := retained(address, "wide", namespace, "")
	ip.Spec.Owner.Kind, ip.Spec.Owner.Name, ip.Spec.Service = "Service", name, &v1alpha1.ServiceReference{Name: name}
	return ip
}

// carries returns the NodeAssignment of a node that is to carry 10.8.3.1, and carries an address.
func carries(node, address string) *v1alpha1.NodeAssignment {
	of := &v1alpha1.NodeAssignment{ObjectMeta: metav1.ObjectMeta{Name: node}}
	of.Spec.Addresses = []v1alpha1.AssignedAddress{{Address: cmp.Or(address, "10.8.3.1"), Use: v1alpha1.UseService}}
	if address != "" {
		of.Status.Carried = []string{address}
	} else {
		of.Status.Refused = []v1alpha1.RefusedAddress{{Address: "10.8.3.1", Message: "a host has it"}}
	}
	return of
}

// answer is what a page is answered with.
type answer struct {
	*http.Response
	body string
	root *html.Node
}

func get(t *testing.T, handler http.Handler, scope register.Scope, path string, header ...string) answer {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r.WithContext(access.With(r.Context(), scope)))
	a := answer{Response: w.Result(), body: w.Body.String()}
	var err error
	if a.root, err = html.Parse(strings.NewReader(a.body)); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return a
}

// elements returns the elements of a name, or all of them.
func (a *answer) elements(name string) []*html.Node {
	var all []*html.Node
	for node := range a.root.Descendants() {
		if node.Type == html.ElementNode && (name == "" || node.Data == name) {
			all = append(all, node)
		}
	}
	return all
}

func attribute(node *html.Node, name string) string {
	for _, a := range node.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

func text(node *html.Node) string {
	var b strings.Builder
	for child := range node.Descendants() {
		if child.Type == html.TextNode {
			b.WriteString(child.Data + " ")
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// every is a URL of every view.
var every = []string{
	"/", "/pools/web", "/pools/wide", "/pools/six", "/pools/sick", "/pools/closed", "/addresses", "/addresses?q=10.0.70.9", "/addresses?q=cart&state=Held&pool=web&sort=pod&order=desc",
	"/addresses?q=nobody", "/addresses/10.0.70.2", "/addresses/10.0.70.3", "/addresses/10.0.70.4", "/addresses/10.0.70.5", "/addresses/2001:db8::7", "/waiting", "/waiting?q=cart",
	"/claims", "/services", "/nodes", "/bgp", "/failover", "/changes", "/findings", "/nothing", "/pools/gone", "/addresses/x", "/addresses?state=x", "/addresses?after=x", "/?page=9",
}

// Each view is one document that a browser and a screen reader can use, under a policy without
// inline code and style.
func TestDocuments(t *testing.T) {
	handler := New(Options{Register: newRegister(t), Cluster: "prod"})
	for _, path := range every {
		t.Run(path, func(t *testing.T) {
			a := get(t, handler, register.Everything, path)
			if got := a.Header.Get("Content-Type"); got != "text/html; charset=utf-8" {
				t.Errorf("it is of type %s", got)
			}
			for name, want := range map[string]int{"h1": 1, "main": 1, "title": 1, "header": 1, "footer": 1} {
				if got := len(a.elements(name)); got != want {
					t.Errorf("it has %d %s, want %d", got, name, want)
				}
			}
			if got := attribute(a.elements("html")[0], "lang"); got != "en" {
				t.Errorf("its language is %q", got)
			}
			checkElements(t, &a)
		})
	}
}

func checkElements(t *testing.T, a *answer) {
	t.Helper()
	ids, targets := map[string]bool{}, map[string]bool{}
	for _, node := range a.elements("") {
		if id := attribute(node, "id"); id != "" {
			if ids[id] {
				t.Errorf("id %s is there twice", id)
			}
			ids[id] = true
		}
		for _, attr := range node.Attr {
			if attr.Key == "style" || strings.HasPrefix(attr.Key, "on") || strings.HasPrefix(attr.Key, "hx-on") {
				t.Errorf("<%s> has inline %s", node.Data, attr.Key)
			}
		}
		switch node.Data {
		case "script":
			if attribute(node, "src") == "" || node.FirstChild != nil {
				t.Error("there is an inline script")
			}
		case "style":
			t.Error("there is an inline style")
		case "th":
			if attribute(node, "scope") == "" {
				t.Errorf("heading %q has no scope", text(node))
			}
		case "a":
			if text(node) == "" && attribute(node, "aria-label") == "" {
				t.Errorf("link %s has no name", attribute(node, "href"))
			}
		}
		for _, name := range []string{"href", "src", "action", "hx-get", "sse-connect"} {
			link := attribute(node, name)
			if target, ok := strings.CutPrefix(link, "#"); ok {
				targets[target] = true
			} else if link != "" && (!strings.HasPrefix(link, "/") || strings.HasPrefix(link, "//")) {
				t.Errorf("%s %q leads elsewhere", name, link)
			}
		}
	}
	for target := range targets {
		if !ids[target] {
			t.Errorf("a link leads to #%s, and nothing has this id", target)
		}
	}
}

// The links of all views lead to pages that there are.
func TestLinks(t *testing.T) {
	handler := New(Options{Register: newRegister(t)})
	seen := map[string]bool{}
	for queue := []string{"/"}; len(queue) > 0; queue = queue[1:] {
		if seen[queue[0]] || len(seen) > 600 {
			continue
		}
		seen[queue[0]] = true
		a := get(t, handler, register.Everything, queue[0])
		if a.StatusCode != http.StatusOK {
			t.Errorf("%s is answered %d", queue[0], a.StatusCode)
		}
		for _, link := range a.elements("a") {
			href, _, _ := strings.Cut(attribute(link, "href"), "#")
			if href != "" && !strings.HasPrefix(href, "/api/") {
				queue = append(queue, href)
			}
		}
	}
	for _, want := range []string{"/pools/web", "/addresses/10.0.70.2", "/claims", "/services", "/waiting", "/nodes", "/bgp", "/failover", "/changes", "/findings", "/addresses/10.0.70.5", "/addresses?owner=cart&namespace=shop", "/addresses/10.8.3.1"} {
		if !seen[want] {
			t.Errorf("no link leads to %s", want)
		}
	}
}

// htmx gets the part that changes, and nothing else but the number of waiting pods.
func TestFragment(t *testing.T) {
	handler := New(Options{Register: newRegister(t)})
	for _, path := range every {
		a := get(t, handler, register.Everything, path, "HX-Request", "true")
		if !strings.HasPrefix(a.body, `<div id="live">`) || strings.Contains(a.body, "<h1") {
			t.Errorf("%s: the fragment is %.60q", path, a.body)
		}
		if a.Header.Get("Vary") != "HX-Request" || a.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: a cache may take the fragment for the page", path)
		}
		whole := get(t, handler, register.Everything, path)
		if live, _, _ := strings.Cut(a.body, `<span id="waiting-count"`); !strings.Contains(whole.body, live) {
			t.Errorf("%s: the page does not have the fragment", path)
		}
	}
	a := get(t, handler, register.Everything, "/addresses?q=cart&pool=&state=", "HX-Request", "true", "HX-Trigger", "search")
	if got := a.Header.Get("HX-Replace-Url"); got != "/addresses?q=cart" {
		t.Errorf("the URL of a search is %q", got)
	}
}

// A page says the words that somebody needs.
func TestWords(t *testing.T) {
	handler := New(Options{Register: newRegister(t), Cluster: "prod"})
	for _, test := range []struct {
		path   string
		status int
		want   []string
	}{
		{"/", 200, []string{"Overview · Berth · prod", "IPv4", "db", "Full", "Not ready", "spec.ranges[0]: 10.0.91.1 is not inside the subnet", "2 of 6 pools"}},
		{"/pools/web", 200, []string{"Pool web", "10.0.70.0/24", "Ranges 10.0.70.2-10.0.70.250 Gateway none, cooldown 1h0m0s", "Nodes all", "10.0.70.2: held", "10.0.70.3: retained", "10.0.70.4: reserved", "10.0.70.5: free", "10.0.70.1: not given by the pool", "10.0.70.5-10.0.70.250", "kubectl berth free web"}},
		{"/pools/wide", 200, []string{"A cell is 64 addresses", "10.8.0.16 to 10.8.0.79: less than a tenth taken"}},
		{"/pools/six", 200, []string{"is too large", "kubectl berth free six"}},
		{"/pools/closed", 200, []string{"Disabled", "The pool has no free address, as spec.disabled is true."}},
		{"/pools/gone", 404, []string{"IPPool gone: there is no IPPool of this name."}},
		{"/addresses?q=10.0.70.5", 200, []string{"nobody has it; IPPool web can give it to a pod."}},
		{"/addresses?q=nobody", 200, []string{"No address has all of this."}},
		{"/addresses?q=ledger-7", 200, []string{"1 pod of this name waits for an address."}},
		{"/addresses?q=db", 200, []string{"There is also a pool of this name: db ."}},
		{"/addresses?state=Held&after=x", 400, []string{"begin with the first page, /addresses?state=Held."}},
		{"/addresses?sort=size", 400, []string{`There is no sort "size"`}},
		{"/addresses?q=%zz", 400, []string{"The parameters of this URL cannot be read"}},
		{"/addresses/10.0.70.2", 200, []string{"Pod shop/cart-0 on node node-a has it since 2026-11-26 11:00:00 UTC.", "kubectl berth trace 10.0.70.2", "kubectl berth history 10.0.70.2"}},
		{"/addresses/10.0.70.3", 200, []string{"kubectl berth release 10.0.70.3", "Retained"}},
		{"/addresses/10.0.70.4", 200, []string{"An administrator reserved it: no pod gets it (VRRP).", "kubectl berth unreserve 10.0.70.4"}},
		{"/addresses/10.0.70.5", 200, []string{"kubectl berth reserve 10.0.70.5"}},
		{"/addresses/192.0.2.1", 404, []string{"It is in no IPPool's subnet."}},
		{"/addresses/web-0", 400, []string{`"web-0" is no address: write 10.0.70.2, 10.0.70.0/30 or 2001:db8::1.`}},
		{"/waiting", 200, []string{"no pool has a free address", "kubectl berth why cart-7 -n shop", "No scheduler has looked at it yet.", "Its schedulerName is default-scheduler"}},
		{"/waiting?q=nobody", 200, []string{"No pod with nobody in its name waits for an address."}},
		{"/nodes", 200, []string{"node-gone Gone", "node-b Not ready", "node-a Ready"}},
		{"/claims", 200, []string{
			"ledger bank Waits 2 0 0 no ledger pool has a free address kubectl describe ipclaim ledger -n bank", "cart shop Too many 1 7 0 10.8.2.0 basket-0", "10.8.2.4 basket-4 and more the cart claim has 7 addresses",
			"new shop Not looked at", "well shop Ready",
		}},
		{"/services", 200, []string{"front shop 10.8.3.1 wide node-a Answers node-c Does not answer a host has it", "lonely shop 10.8.3.3 wide No node carries it", "teller bank 10.8.3.2 wide node-b Answers", "kubectl berth why service/front -n shop"}},
		{"/bgp", 200, []string{"bank-rack 10.11.0.1 65101 65200 rack=1 300ms × 3 10.8.0.0/13", "Ask now With your rights, the same as kubectl berth bgp"}},
		{"/failover", 200, []string{"node-gone Gone", "node-b Not ready", "node-lost Not ready Lost: its pods move", "the same as kubectl berth failover"}},
		{"/nodes?page=2", 404, []string{"There is no page 2: the last one is 1."}},
		{"/nodes?page=x", 400, []string{`There is no page "x": write a number from 1.`}},
		{"/changes", 200, []string{"10.0.70.9", "bank/ledger-9", "on node-b", "Free", "This console has seen each since "}},
		{"/", 200, []string{"This console has seen each since "}},
		{"/addresses/10.0.70.2", 200, []string{"the records have the last one of each address"}},
		{"/findings", 200, []string{"This console does not check. Run kubectl berth check"}},
		{"/none", 404, []string{"There is no page /none."}},
	} {
		a := get(t, handler, register.Everything, test.path)
		if a.StatusCode != test.status {
			t.Errorf("%s is answered %d, want %d", test.path, a.StatusCode, test.status)
		}
		said := text(a.root)
		for _, node := range a.elements("") {
			said += " " + attribute(node, "aria-label")
		}
		for _, want := range test.want {
			if !strings.Contains(said, want) {
				t.Errorf("%s does not say %q: %s", test.path, want, said)
			}
		}
	}
}

// What is written to the console is refused with a sentence.
func TestReadOnly(t *testing.T) {
	handler := New(Options{Register: newRegister(t)})
	for _, path := range []string{"/", "/addresses", "/findings?run=1"} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, nil))
		if w.Code != http.StatusMethodNotAllowed || !strings.Contains(w.Body.String(), "This page changes nothing") {
			t.Errorf("POST %s is answered %d", path, w.Code)
		}
	}
}

// server is an API server that has FloatingIPs, and a user with all rights.
type server map[string]*v1alpha1.FloatingIP

func (s server) Get(_ context.Context, name string, _ metav1.GetOptions) (*v1alpha1.FloatingIP, error) {
	if ip := s[name]; ip != nil {
		return ip, nil
	}
	return nil, apierrors.NewNotFound(v1alpha1.SchemeGroupVersion.WithResource("floatingips").GroupResource(), name)
}

func (s server) Delete(ctx context.Context, name string, options metav1.DeleteOptions) error {
	ip, err := s.Get(ctx, name, metav1.GetOptions{})
	switch {
	case err != nil:
		return err
	case options.Preconditions == nil || *options.Preconditions.UID != ip.UID || *options.Preconditions.ResourceVersion != ip.ResourceVersion:
		return apierrors.NewConflict(v1alpha1.SchemeGroupVersion.WithResource("floatingips").GroupResource(), name, errors.New("it is another"))
	case len(options.DryRun) == 0:
		delete(s, name)
	}
	return nil
}

// A user without JavaScript releases addresses in two steps, the first of which changes nothing; a
// console that only reads has no such form.
func TestRelease(t *testing.T) {
	r := newRegister(t)
	ips := server{}
	for name, addr := range map[string]string{"cart-1": "10.0.70.3", "cart-2": "10.0.70.6", "cart-3": "10.0.70.7"} {
		ip := retained(addr, "web", "shop", name)
		ip.UID, ip.ResourceVersion = types.UID("uid-of-"+name), "7"
		ips[ip.Name] = ip
		r.PutFloatingIP(ip.DeepCopy())
	}
	post := func(handler http.Handler, form url.Values) answer {
		t.Helper()
		request := httptest.NewRequest(http.MethodPost, "/release", strings.NewReader(form.Encode()))
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		ctx := access.WithWriter(access.With(t.Context(), register.Everything), &access.Writer{FloatingIPs: ips})
		handler.ServeHTTP(w, request.WithContext(ctx))
		a := answer{Response: w.Result(), body: w.Body.String()}
		var err error
		if a.root, err = html.Parse(strings.NewReader(a.body)); err != nil {
			t.Fatal(err)
		}
		checkElements(t, &a)
		return a
	}
	// form returns the fields that a press on the button of the form sends; nil if there is none.
	form := func(a answer) url.Values {
		fields := url.Values{}
		for _, node := range a.elements("form") {
			if attribute(node, "action") != "/release" {
				continue
			}
			for field := range node.Descendants() {
				if field.Data == "input" {
					fields.Add(attribute(field, "name"), attribute(field, "value"))
				}
			}
		}
		return fields
	}
	handler := New(Options{Register: r})
	for path, want := range map[string]int{"/addresses/10.0.70.3": 1, "/addresses/10.0.70.2": 0, "/addresses/10.0.70.4": 0, "/addresses/10.0.70.5": 0, "/addresses?state=Retained&namespace=shop": 3, "/addresses": 0, "/addresses?state=Held": 0} {
		if got := form(get(t, handler, register.Everything, path))["seen"]; len(got) != want {
			t.Errorf("%s offers to release %q, want %d", path, got, want)
		}
		if got := form(get(t, New(Options{Register: r, ReadOnly: "say so"}), register.Everything, path)); len(got) != 0 {
			t.Errorf("%s of a console that only reads offers to release %q", path, got)
		}
	}
	first := post(handler, form(get(t, handler, register.Everything, "/addresses?state=Retained&namespace=shop")))
	for _, want := range []string{"The API server would release 3 addresses. Nothing is done yet.", "Would be released StatefulSet shop/cart", "kubectl berth release 10.0.70.3 10.0.70.6 10.0.70.7", "Cancel"} {
		if first.StatusCode != http.StatusOK || !strings.Contains(text(first.root), want) {
			t.Errorf("the first step is %d, want %q in %s", first.StatusCode, want, text(first.root))
		}
	}
	if strings.Contains(first.body, "sse-connect") {
		t.Error("the page to confirm follows the cluster: the user may confirm something else than was read")
	}
	if len(ips) != 3 {
		t.Fatalf("the first step freed some of %v", ips)
	}
	// One changes before the user confirms.
	ips["10.0.70.6"].ResourceVersion = "8"
	second := post(handler, form(first))
	for _, want := range []string{"2 addresses are released, and 1 is left as it is.", "10.0.70.3 Released", "10.0.70.6 Left as it is", "it has changed since it was read"} {
		if second.StatusCode != http.StatusOK || !strings.Contains(text(second.root), want) {
			t.Errorf("the second step is %d, want %q in %s", second.StatusCode, want, text(second.root))
		}
	}
	if len(ips) != 1 || ips["10.0.70.6"] == nil || len(form(second)) != 0 {
		t.Errorf("the second step left %v", ips)
	}
	// The same form once more, a form that is none, and one to a console that only reads.
	if again := post(handler, form(first)); !strings.Contains(text(again.root), "0 addresses are released, and 1 is left as it is.") || !strings.Contains(text(again.root), "Is free already") {
		t.Errorf("the second step, once more: %s", text(again.root))
	}
	for _, wrong := range []url.Values{{}, {"seen": {"10.0.70.6"}}, {"seen": {"10.0.70.6  8"}}, {"seen": {"web u 8"}}, {"seen": {strings.Repeat("x", 70000)}}} {
		wrong.Set("confirmed", "yes")
		if a := post(handler, wrong); a.StatusCode != http.StatusBadRequest {
			t.Errorf("the form %.80v is answered %d", wrong, a.StatusCode)
		}
	}
	reader := post(New(Options{Register: r, ReadOnly: "start it with --writes"}), url.Values{"seen": {"10.0.70.6 uid-of-cart-2 8"}, "confirmed": {"yes"}})
	if reader.StatusCode != http.StatusForbidden || !strings.Contains(text(reader.root), "start it with --writes") || len(ips) != 1 {
		t.Errorf("a console that only reads: %d %s", reader.StatusCode, text(reader.root))
	}
	if a := get(t, handler, register.Everything, "/release"); a.StatusCode != http.StatusSeeOther {
		t.Errorf("GET /release: %d", a.StatusCode)
	}
}

// The button of a page has programs asked with the rights of the user, and what they say is shown
// as it is.
func TestAsk(t *testing.T) {
	handler := New(Options{Register: newRegister(t), ReadOnly: "only reads"})
	ask := func(path string, writer *access.Writer) answer {
		t.Helper()
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, nil).WithContext(access.WithWriter(access.With(t.Context(), register.Everything), writer)))
		a := answer{Response: w.Result(), body: w.Body.String()}
		var err error
		if a.root, err = html.Parse(strings.NewReader(a.body)); err != nil {
			t.Fatal(err)
		}
		checkElements(t, &a)
		return a
	}
	said := func(context.Context) (*access.Told, error) {
		return &access.Told{
			Columns: []string{"Node", "State"}, Rows: [][]string{{"node-a", "Established, BFD Up"}, {"<b>node-b</b>", "Down"}},
			Lines: []access.Line{{Text: "Node node-b has no session"}, {Text: "kubectl get bgppeer rack -o yaml", IsCommand: true}},
		}, nil
	}
	fails := func(context.Context) (*access.Told, error) {
		return nil, errors.New("list the pods of berth-failover: pods is forbidden")
	}
	writer := &access.Writer{BGP: said, Failover: fails}
	a := ask("/bgp", writer)
	if want := "Node State node-a Established, BFD Up <b>node-b</b> Down Node node-b has no session kubectl get bgppeer rack -o yaml Copy Ask again"; a.StatusCode != http.StatusOK || !strings.Contains(text(a.root), want) {
		t.Errorf("speakers are asked: %d %s\nwant %s", a.StatusCode, text(a.root), want)
	}
	if strings.Contains(a.body, "sse-connect") {
		t.Error("the answer follows the cluster: each change would have it asked again")
	}
	if a := ask("/failover", writer); a.StatusCode != http.StatusBadGateway || !strings.Contains(text(a.root), "List the pods of berth-failover: pods is forbidden.") {
		t.Errorf("berth-failover is asked: %d %s", a.StatusCode, text(a.root))
	}
	writer.Traffic = func(of standing.Address) access.Question {
		return func(context.Context) (*access.Told, error) {
			return &access.Told{Lines: []access.Line{{Text: of.Pod.String() + " on " + of.Node}}}, nil
		}
	}
	if a := ask("/addresses/10.0.70.2", writer); a.StatusCode != http.StatusOK || !strings.Contains(text(a.root), "Is anybody using 10.0.70.2? shop/cart-0 on node-a Ask again") {
		t.Errorf("an agent is asked: %d %s", a.StatusCode, text(a.root))
	}
	for path, code := range map[string]int{"/addresses/web-0": http.StatusBadRequest, "/addresses/10.0.70.2": http.StatusForbidden} {
		if a := ask(path, nil); a.StatusCode != code {
			t.Errorf("%s without rights: %d", path, a.StatusCode)
		}
	}
	for path, has := range map[string]bool{"/addresses/10.0.70.2": true, "/addresses/192.0.2.1": false} {
		if a := get(t, handler, register.Everything, path); strings.Contains(text(a.root), "Is anybody using it?") != has {
			t.Errorf("%s has the button: %t", path, !has)
		}
	}
	if a := ask("/bgp", nil); a.StatusCode != http.StatusForbidden {
		t.Errorf("somebody without rights asks: %d", a.StatusCode)
	}
}

// An address in another spelling leads to the page of the address.
func TestSpelling(t *testing.T) {
	handler := New(Options{Register: newRegister(t)})
	for path, want := range map[string]string{"/addresses/2001:DB8:0:0::7": "/addresses/2001:db8::7", "/addresses/2001-0db8-0000-0000-0000-0000-0000-0007": "/addresses/2001:db8::7"} {
		a := get(t, handler, register.Everything, path)
		if a.StatusCode != http.StatusSeeOther || a.Header.Get("Location") != want {
			t.Errorf("%s is answered %d to %q", path, a.StatusCode, a.Header.Get("Location"))
		}
	}
}

// Pages of addresses follow each other, and each address is on one of them.
func TestPages(t *testing.T) {
	r := newRegister(t)
	first := netip.MustParseAddr("10.8.1.0")
	for range 230 {
		r.PutFloatingIP(held(first.String(), "wide", "many", "many-0", "node-a"))
		first = first.Next()
	}
	handler := New(Options{Register: r})
	for _, path := range []string{"/addresses?namespace=many", "/addresses?namespace=many&sort=node&order=desc", "/addresses?namespace=many&sort=since"} {
		seen := map[string]bool{}
		var sizes []int
		for next := path; next != ""; {
			a := get(t, handler, register.Everything, next)
			rows := 0
			next = ""
			for _, node := range a.elements("") {
				if id := attribute(node, "id"); strings.HasPrefix(id, "a-") {
					seen[id] = true
					rows++
				}
				if attribute(node, "rel") == "next" {
					next = attribute(node, "href")
				}
			}
			sizes = append(sizes, rows)
		}
		if len(seen) != 230 || !slices.Equal(sizes, []int{100, 100, 30}) {
			t.Errorf("%s: %d addresses on pages of %v", path, len(seen), sizes)
		}
	}
}

// Names are shown as they are, and are never a part of the page.
func TestHostileNames(t *testing.T) {
	r := newRegister(t)
	const evil = `"><script>alert(1)</script>'&javascript:x?a=b#c/../`
	r.Objects.Pools.Put(poolOf(evil, "10.99.0.0/24", "10.99.0.1-10.99.0.9"))
	r.PutFloatingIP(held("10.99.0.1", evil, evil, evil, evil))
	r.PutFloatingIP(retained("10.99.0.2", evil, evil, evil))
	r.PutFloatingIP(reserved("10.99.0.3", evil, evil))
	r.Objects.Waiting.Put(&register.WaitingPod{Namespace: evil, Pod: evil, Scheduler: evil, Reason: evil, Message: evil})
	r.Objects.Waiting.Put(&register.WaitingPod{Namespace: evil, Pod: "x", Scheduler: evil})
	r.Objects.Nodes.Put(&register.Node{Name: evil, Ready: evil})
	r.Objects.Claims.Put(claimOf(evil, evil, 1, metav1.Condition{Type: v1alpha1.ClaimReady, Status: metav1.ConditionFalse, Message: evil}))
	r.PutFloatingIP(ofService("10.99.0.4", evil, evil))
	assignment := carries(evil, "")
	assignment.Status.Refused[0].Message = evil
	r.Objects.Assignments.Put(assignment)
	r.Objects.Peers.Put(&v1alpha1.BGPPeer{ObjectMeta: metav1.ObjectMeta{Name: evil}, Spec: v1alpha1.BGPPeerSpec{
		Peer: v1alpha1.BGPRouter{Address: evil}, NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"x": evil}}, Export: []v1alpha1.BGPExport{{Prefixes: []string{evil}}},
	}})
	r.Missing(register.Nodes, evil)
	handler := New(Options{Register: r, Cluster: evil, Findings: func(context.Context) (*Findings, error) {
		return &Findings{At: noon, Items: []Finding{{evil, evil, evil, evil}}, Unknown: []string{evil}}, nil
	}})
	if a := get(t, handler, register.Everything, "/findings?run=1"); a.StatusCode != http.StatusSeeOther {
		t.Fatalf("the check is answered %d", a.StatusCode)
	}
	paths := slices.Concat(every, []string{
		poolURL(evil), find("owner", evil), find("q", evil), find("state", evil), find("after", evil), "/addresses/10.99.0.1", "/addresses/10.99.0.2", "/addresses/10.99.0.3",
		addressURL(evil), "/waiting?" + url.Values{"q": {evil}}.Encode(), "/?" + url.Values{"page": {evil}}.Encode(), "/" + url.PathEscape(evil),
	})
	shown := false
	for _, path := range paths {
		a := get(t, handler, register.Everything, path)
		for _, script := range a.elements("script") {
			if script.FirstChild != nil {
				t.Errorf("%s has a script of somebody else", path)
			}
		}
		checkElements(t, &a)
		shown = shown || strings.Contains(text(a.root), evil)
		for _, node := range a.elements("a") {
			if link := attribute(node, "href"); strings.HasPrefix(link, "/pools/%22") {
				if got := get(t, handler, register.Everything, link); got.StatusCode != http.StatusOK {
					t.Errorf("the link %s of %s leads to %d", link, path, got.StatusCode)
				}
			}
		}
	}
	if !shown {
		t.Error("no page shows the name")
	}
}

// Who may see one namespace sees no name of another on any page.
func TestScope(t *testing.T) {
	handler := New(Options{Register: newRegister(t), Findings: func(context.Context) (*Findings, error) {
		t.Error("a check of the whole cluster is run for somebody who may see a part")
		return nil, errors.New("never")
	}})
	hidden := regexp.MustCompile("ledger|bank|node-b|node-gone|VRRP")
	paths := append(slices.Clone(every), "/pools/db", "/addresses/10.0.80.2", "/addresses/10.0.70.9", "/addresses/10.8.0.20", "/findings?run=1", "/addresses?q=10.0.80.0/24")
	own := false
	for _, header := range []string{"", "true"} {
		for _, path := range paths {
			a := get(t, handler, register.Of("shop"), path, "HX-Request", header)
			if found := hidden.FindString(a.body); found != "" {
				t.Errorf("%s shows %q", path, found)
			}
			own = own || strings.Contains(a.body, "cart-0")
			none := get(t, handler, register.Of(), path, "HX-Request", header)
			// The search form has an example.
			if found := regexp.MustCompile("cart-|shop|node-a").FindString(strings.ReplaceAll(none.body, "shop/web-0", "")); found != "" && !strings.Contains(path, "cart") {
				t.Errorf("%s shows %q to somebody without rights", path, found)
			}
		}
	}
	if !own {
		t.Error("the user's own pods are not shown")
	}
	if a := get(t, handler, register.Of("shop"), "/addresses/10.0.80.2"); a.StatusCode != http.StatusForbidden {
		t.Errorf("an address of somebody else is answered %d", a.StatusCode)
	}
	if a := get(t, handler, register.Of("shop"), "/pools/db"); !strings.Contains(a.body, "10.0.80.2: taken, by somebody you may not see") {
		t.Error("the map does not say that an address is taken")
	}
	if a := get(t, handler, register.Everything, "/waiting"); !hidden.MatchString(a.body) {
		t.Error("nobody sees the names")
	}
}

// A pool may vanish while it is looked at, and what cannot be read is said.
func TestGone(t *testing.T) {
	r := newRegister(t)
	handler := New(Options{Register: r})
	r.Objects.Pools.Delete("", "web")
	for _, header := range []string{"", "true"} {
		if a := get(t, handler, register.Everything, "/pools/web", "HX-Request", header); a.StatusCode != http.StatusNotFound || !strings.Contains(text(a.root), "IPPool web: there is no IPPool of this name.") {
			t.Errorf("a pool that is gone is answered %d", a.StatusCode)
		}
	}
	r.Missing(register.Nodes, "you may not list and watch nodes of the whole cluster")
	for _, path := range []string{"/", "/nodes", "/addresses"} {
		if a := get(t, handler, register.Everything, path); !strings.Contains(text(a.root), "Not all is shown as it is now (nodes): you may not list and watch nodes of the whole cluster.") {
			t.Errorf("%s does not say that nodes cannot be read", path)
		}
	}
	empty := New(Options{Register: register.New()})
	for _, path := range every {
		if a := get(t, empty, register.Everything, path); a.StatusCode >= 500 || !strings.Contains(a.body, "not complete yet") {
			t.Errorf("%s of a console that has no lists yet is answered %d", path, a.StatusCode)
		}
	}
}

// Files have the hash of their content in their URL, and may be kept for ever.
func TestAssets(t *testing.T) {
	handler := New(Options{Register: register.New()})
	a := get(t, handler, register.Everything, "/")
	n := 0
	for _, node := range a.elements("") {
		link := attribute(node, "src")
		if node.Data == "link" {
			link = attribute(node, "href")
		}
		if link == "" {
			continue
		}
		n++
		file := get(t, handler, register.Everything, link)
		if file.StatusCode != http.StatusOK || file.Header.Get("Cache-Control") != "public, max-age=31536000, immutable" || file.body == "" {
			t.Errorf("%s is answered %d", link, file.StatusCode)
		}
		if kind := file.Header.Get("Content-Type"); !regexp.MustCompile("^(text/(css|javascript); charset=utf-8|image/svg.xml)$").MatchString(kind) {
			t.Errorf("%s is of type %s", link, kind)
		}
		old := regexp.MustCompile("[0-9a-f]{16}").ReplaceAllString(link, "0123456789abcdef")
		if file := get(t, handler, register.Everything, old); file.StatusCode != http.StatusNotFound || file.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s, of another version, is answered %d", old, file.StatusCode)
		}
	}
	if n != 6 {
		t.Errorf("the page has %d files", n)
	}
}

// One check runs at a time, for all who ask, and its result stays.
func TestFindings(t *testing.T) {
	begun, end := make(chan struct{}), make(chan error)
	pages := newSite(Options{Register: newRegister(t), Findings: func(ctx context.Context) (*Findings, error) {
		begun <- struct{}{}
		select {
		case err := <-end:
			return &Findings{At: noon, Items: []Finding{{"B101", "floatingip/10-0-70-2", "its pod is gone", "kubectl berth release 10.0.70.2"}}}, err
		case <-ctx.Done():
			t.Error("the check ends with the request")
			return nil, ctx.Err()
		}
	}})
	handler := pages.handler()
	says := func(when string, want ...string) {
		t.Helper()
		a := get(t, handler, register.Everything, "/findings")
		for _, w := range want {
			if said := text(a.root); !strings.Contains(said, w) {
				t.Errorf("%s the page does not say %q: %s", when, w, said)
			}
		}
	}
	// check runs a check to its end, with an error.
	check := func(err error) {
		t.Helper()
		asked := make(chan struct{})
		go func() {
			defer close(asked)
			for range 2 { // the second joins the first
				if a := get(t, handler, register.Everything, "/findings?run=1"); a.Header.Get("Location") != "/findings" {
					t.Errorf("a check is answered %d", a.StatusCode)
				}
			}
		}()
		<-begun
		<-asked
		says("during a check", "A check runs")
		pages.checks.mu.Lock()
		ended := pages.checks.ended
		pages.checks.mu.Unlock()
		end <- err
		<-ended
	}
	says("before any check", "No check has been done")
	if a := get(t, handler, register.Everything, "/findings?run=1", "Sec-Fetch-Site", "cross-site"); a.StatusCode != http.StatusOK {
		t.Errorf("a check for another site is answered %d", a.StatusCode)
	}
	check(nil)
	says("after a check", "found 1 contradiction", "B101", "its pod is gone", "kubectl berth release 10.0.70.2", "Check anew")
	check(fmt.Errorf("list pods: %w", context.DeadlineExceeded))
	says("after a check that failed", "The check could not be done: List pods: context deadline exceeded.", "B101")
}

// A row of a page costs little: templates would make some two hundred objects for it.
func TestRowsAreCheap(t *testing.T) {
	const most, few, many = 30, 10, 90 // objects for a row, and rows
	cost := func(path string, rows int) float64 {
		r := newRegister(t)
		r.Objects.Pools.Replace(nil)
		first := netip.MustParseAddr("10.8.1.0")
		var nodes []*register.Node
		var waiting []*register.WaitingPod
		for i := range rows {
			name := fmt.Sprintf("name-%d", i)
			r.Objects.Pools.Put(poolOf(name, fmt.Sprintf("10.%d.0.0/24", 100+i), fmt.Sprintf("10.%d.0.1-10.%d.0.9", 100+i, 100+i)))
			r.PutFloatingIP(held(first.String(), "many", "many", name, name))
			nodes = append(nodes, &register.Node{Name: name, Ready: "True"})
			waiting = append(waiting, &register.WaitingPod{Namespace: "many", Pod: name, Message: "no pool has a free address"})
			first = first.Next()
		}
		r.Objects.Nodes.Replace(nodes)
		r.Objects.Waiting.Replace(waiting)
		handler := New(Options{Register: r})
		request := httptest.NewRequest(http.MethodGet, path, nil)
		request = request.WithContext(access.With(t.Context(), register.Everything))
		return testing.AllocsPerRun(10, func() { handler.ServeHTTP(httptest.NewRecorder(), request) })
	}
	for _, path := range []string{"/", "/addresses?namespace=many", "/nodes", "/changes", "/waiting"} {
		if got := (cost(path, many) - cost(path, few)) / (many - few); got > most {
			t.Errorf("a row of %s makes %.0f objects, want at most %d", path, got, most)
		} else {
			t.Logf("a row of %s makes %.1f objects", path, got)
		}
	}
}

// Pages from memory take turns; one that waits for others has none wait.
func TestTurns(t *testing.T) {
	pages := newSite(Options{Register: newRegister(t)})
	handler := pages.handler()
	for _, path := range every {
		if a := get(t, handler, register.Everything, path); a.body == "" || len(pages.turns) != 0 {
			t.Errorf("after %s, which is answered %d, %d turns are taken, want none", path, a.StatusCode, len(pages.turns))
		}
	}
	for range cap(pages.turns) {
		pages.turns.Take(t.Context())
	}
	ctx, cancel := context.WithCancel(access.With(t.Context(), register.Everything))
	cancel()
	for _, test := range []struct {
		method, path string
		answered     bool
	}{{http.MethodGet, "/", false}, {http.MethodGet, "/pools/web", false}, {http.MethodGet, "/findings", true}, {http.MethodPost, "/release", true}} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(test.method, test.path, nil).WithContext(ctx))
		if got := w.Body.Len() > 0; got != test.answered {
			t.Errorf("without a turn %s %s is answered: %t, want %t", test.method, test.path, got, test.answered)
		}
	}
}
