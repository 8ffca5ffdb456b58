// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/seedtest"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/program"
	"github.com/berth-dev/berth/test/simulation/proxy"
)

// Tenants of the tests: all names that a tenant has contain the tenant's.
const (
	red  = "crimson"
	blue = "azure"
)

// planted are the texts of a tenant that a console shows.
var planted = []string{"-ns", "-pod", "-owner", "-node", "-wait", "-message", "-claim"}

// A console in the cluster shows each user what the user may list, on each page and path, and no
// name of others.
func TestTenants(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{Controllers: true})
	addresses := plant(w)
	cluster := startCluster(w, map[string]any{"enabled": true, "listSecret": "lists"})
	viewer, tenant, other, poor := cluster.user("default", "ann"), cluster.user(red+"-ns", "roe"), cluster.user(blue+"-ns", "bea"), cluster.user("default", "pip")
	w.Grant("viewer-rbac.yaml", proxy.ServiceAccount("default", "ann").UserName)
	bind(w, red+"-ns", "roe")
	bind(w, blue+"-ns", "bea")
	w.Eventually("wait until the viewer sees all", func() error {
		s := viewer.get(prefix + "/summary")
		return complainIf(s.status != http.StatusOK || !bytes.Contains(s.body, []byte(`"waiting":2,"nodes":2,"pools":2`)), "%d %s", s.status, s.body)
	})
	// Records tell of changes before the console was started.
	told := len(read[changeList](viewer, "/changes").Changes)
	// An address goes from one tenant to the other.
	for _, to := range []string{blue, red} {
		simulation.Patch(w, w.AsController().FloatingIPs, "10.0.70.40", `{"spec":{"pod":null,"node":null,"lastPod":%q}}`, "pod-before")
		if err := w.Berth.FloatingIPs.Delete(w.Ctx, "10.0.70.40", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		holdFor(w, to, "10.0.70.40", "web")
	}
	w.Eventually("wait until the console has seen the changes", func() error {
		n := len(read[changeList](viewer, "/changes").Changes)
		return complainIf(n != told+6, "%d changes, want %d", n, told+6)
	})

	paths := []string{"/", "/pools/web", "/pools/wub", "/pools/full", "/addresses", "/addresses?q=azur", "/addresses?sort=node&order=desc", "/addresses?state=Reserved",
		"/claims", "/services", "/bgp", "/failover", "/waiting", "/waiting?q=azur", "/nodes", "/changes", "/findings", "/findings?run=1", "/nothing", "/static/nothing"}
	for _, addr := range addresses {
		paths = append(paths, "/addresses/"+addr)
		for _, path := range viewer.document.paths(map[string]string{"pool": "web", "address": addr, "namespace": "nowhere", "claim": "none"}) {
			if !strings.HasSuffix(path, "/events") {
				paths = append(paths, path)
			}
		}
	}
	for _, name := range []string{"q=azur", "q=azure-pod", "q=azure-ns/azure", "namespace=azure-ns", "pod=azure-pod", "owner=azure-owner", "node=azure-node", "sort=pod", "state=Reserved", "state=Cooling"} {
		paths = append(paths, prefix+"/addresses?"+name)
	}
	slices.Sort(paths)
	paths = slices.Compact(paths)
	for name, user := range map[string]struct {
		*console
		sees, unseen []string
	}{
		"viewer": {viewer, []string{red, blue}, nil}, red: {tenant, []string{red}, []string{blue}}, blue: {other, []string{blue}, []string{red}},
		"poor": {poor, nil, []string{red, blue}}, "nobody": {cluster.with(""), nil, []string{red, blue}}, "stranger": {cluster.with("x.y.z"), nil, []string{red, blue}},
	} {
		var all []byte
		for _, path := range paths {
			said := user.get(path)
			for _, hidden := range user.unseen {
				if at := bytes.Index(bytes.ToLower(said.body), []byte(hidden)); at >= 0 {
					t.Errorf("%s: GET %s: %d has %q", name, path, said.status, said.body[max(0, at-100):min(len(said.body), at+100)])
				}
			}
			if len(user.sees) == 0 && said.status < 400 && path != prefix+"/openapi.yaml" {
				t.Errorf("%s: GET %s: %d %.300s", name, path, said.status, said.body)
			}
			if said.status >= 500 {
				t.Errorf("%s: GET %s: %d %.300s", name, path, said.status, said.body)
			}
			if strings.HasPrefix(path, prefix) && said.status == http.StatusOK {
				all = append(all, said.body...)
			}
		}
		for _, seen := range user.sees {
			for _, text := range planted {
				if !bytes.Contains(all, []byte(seen+text)) {
					t.Errorf("%s does not see %s", name, seen+text)
				}
			}
		}
		if whole := bytes.Contains(all, []byte("the plan of reserved addresses")); whole != (name == "viewer") {
			t.Errorf("%s sees a reserved address's reason: %v", name, whole)
		}
		user.firstEvent(len(user.sees) > 0)
	}
	if n := len(read[page](tenant, "/addresses").Addresses); n != 3 {
		t.Errorf("the tenant sees %d addresses, want 3", n)
	}
	cluster.onlyReads()
	cluster.cached(viewer, tenant, other, poor)
	checkLogin(cluster, tenant.token)
	checkExpiry(cluster, tenant.token)
	checkList(cluster, tenant.token)

	// Rights that are withdrawn and accounts that go are gone soon; what was given is there soon.
	if err := w.Kube.RbacV1().RoleBindings(red+"-ns").Delete(w.Ctx, "roe", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := w.Kube.CoreV1().ServiceAccounts(blue+"-ns").Delete(w.Ctx, "bea", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	bind(w, "default", "pip")
	bindIn(w, red+"-ns", "default", "pip")
	becomes := func(user *console, status int, text string) {
		t.Helper()
		w.Eventually("wait for another answer", func() error {
			said := user.get(prefix + "/addresses")
			return complainIf(said.status != status || !bytes.Contains(said.body, []byte(text)), "%d %s", said.status, said.body)
		})
	}
	becomes(tenant, http.StatusForbidden, "pods")
	becomes(other, http.StatusUnauthorized, "token")
	becomes(poor, http.StatusOK, red+"-pod")

	// The API server is away: nobody is logged out for it.
	cluster.Set(proxy.Faults{Error: 1})
	becomes(viewer, http.StatusServiceUnavailable, "the API server")
	said := cluster.browse(http.MethodGet, "/addresses", viewer.token, nil)
	if said.status != http.StatusServiceUnavailable || said.header.Get("Set-Cookie") != "" || !bytes.Contains(said.body, []byte("the API server")) {
		t.Errorf("while the API server is away, a page is %d %v %s", said.status, said.header, said.body)
	}
	cluster.Set(proxy.Faults{})
	becomes(viewer, http.StatusOK, blue+"-pod")
	cluster.onlyReads()
}

// plant makes objects of two tenants, and returns addresses to ask for.
func plant(w *simulation.World) []string {
	w.T.Helper()
	w.Pool("web", "10.0.70.10-10.0.70.60", func(pool *v1alpha1.IPPool) { pool.Spec.Cooldown = &metav1.Duration{Duration: time.Hour} })
	w.Pool("full", "10.0.70.100")
	asked := []string{"10.0.70.9", "10.0.70.20", "10.0.70.100", "192.0.2.1", "azur"}
	for i, tenant := range []string{red, blue} {
		if err := w.Node(w.Ctx, tenant+"-node", fmt.Sprintf("10.0.60.%d", 11+i), nil); err != nil {
			w.T.Fatal(err)
		}
		namespace := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tenant + "-ns"}}
		if _, err := w.Kube.CoreV1().Namespaces().Create(w.Ctx, namespace, metav1.CreateOptions{}); err != nil {
			w.T.Fatal(err)
		}
		claim := &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Name: tenant + "-claim"}, Spec: v1alpha1.IPClaimSpec{Size: 1}}
		if _, err := w.Berth.IPClaims(namespace.Name).Create(w.Ctx, claim, metav1.CreateOptions{}); err != nil {
			w.T.Fatal(err)
		}
		addr := fmt.Sprintf("10.0.70.%d", 31+i)
		holdFor(w, tenant, addr, "web")
		// One that is retained.
		retained := fmt.Sprintf("10.0.70.%d", 51+i)
		retain(w, tenant, retained)
		asked = append(asked, addr, retained)
		pod := simulation.NewPod(tenant + "-wait")
		pod.Namespace = namespace.Name
		w.Eventually("make a pod", func() error {
			// Until a controller has made the namespace's ServiceAccount.
			_, err := w.Kube.CoreV1().Pods(pod.Namespace).Create(w.Ctx, pod, metav1.CreateOptions{})
			return err
		})
		pod.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: v1.PodReasonUnschedulable, Message: tenant + "-message"}}
		pod.Status.Phase = v1.PodPending
		if _, err := w.Kube.CoreV1().Pods(pod.Namespace).UpdateStatus(w.Ctx, pod, metav1.UpdateOptions{}); err != nil {
			w.T.Fatal(err)
		}
	}
	holdFor(w, blue, "10.0.70.100", "full")
	holdFor(w, red, "10.0.70.40", "web")
	w.Reserve("10.0.70.60")
	simulation.Patch(w, w.Berth.FloatingIPs, "10.0.70.60", `{"metadata":{"annotations":{%q:"the plan of reserved addresses"}}}`, v1alpha1.AnnotationReason)
	return append(asked, "10.0.70.40", "10.0.70.60")
}

// holdFor makes an address that a pod of a tenant holds.
func holdFor(w *simulation.World, tenant, addr, pool string) {
	w.T.Helper()
	record(w, tenant, addr, pool, func(spec *v1alpha1.FloatingIPSpec) {
		spec.Node, spec.Pod = tenant+"-node", &v1alpha1.PodReference{Name: tenant + "-pod", UID: "u"}
	})
}

func retain(w *simulation.World, tenant, addr string) {
	w.T.Helper()
	record(w, tenant, addr, "web", func(spec *v1alpha1.FloatingIPSpec) { spec.LastPod = tenant + "-pod-before" })
}

func record(w *simulation.World, tenant, addr, pool string, change func(*v1alpha1.FloatingIPSpec)) {
	w.T.Helper()
	since := metav1.Now()
	ip := &v1alpha1.FloatingIP{
		ObjectMeta: metav1.ObjectMeta{Name: addr},
		Spec: v1alpha1.FloatingIPSpec{
			Address: addr, Pool: pool, ReleasePolicy: v1alpha1.ReleaseNever, Since: &since,
			Owner: &v1alpha1.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: tenant + "-ns", Name: tenant + "-owner", UID: "u", PodName: tenant + "-pod"},
		},
	}
	change(&ip.Spec)
	if _, err := w.Berth.FloatingIPs.Create(w.Ctx, ip, metav1.CreateOptions{}); err != nil {
		w.T.Fatal(err)
	}
}

// bind gives a ServiceAccount of a namespace Kubernetes' ClusterRole view there.
func bind(w *simulation.World, namespace, account string) {
	w.T.Helper()
	bindIn(w, namespace, namespace, account)
}

// bindIn gives a ServiceAccount of a namespace the ClusterRole view in another.
func bindIn(w *simulation.World, in, of, account string) {
	w.T.Helper()
	if _, err := w.Kube.RbacV1().RoleBindings(in).Create(w.Ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: account},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: of, Name: account}},
	}, metav1.CreateOptions{}); err != nil {
		w.T.Fatal(err)
	}
}

// inCluster is a berth-console that runs, with the rights that the chart gives it.
type inCluster struct {
	*console
	// lists is the folder where the Secret with lists is mounted.
	lists string
}

// startCluster starts one with values of the chart.
func startCluster(w *simulation.World, values map[string]any) *inCluster {
	w.T.Helper()
	var rights []*unstructured.Unstructured
	var flags []string
	lists := w.T.TempDir()
	for _, object := range w.Chart(map[string]any{"console": values}) {
		if object.GetName() == "berth-console" && object.GetKind() == "Deployment" {
			for flag, here := range map[string]string{"--writes": "--writes", "--list-dir=": "--list-dir=" + lists} {
				if strings.Contains(fmt.Sprint(object.Object["spec"]), flag) {
					flags = append(flags, here)
				}
			}
		}
		if object.GetName() == "berth-console" && slices.Contains([]string{"ServiceAccount", "ClusterRole", "ClusterRoleBinding"}, object.GetKind()) {
			rights = append(rights, object)
		}
	}
	if len(rights) != 3 {
		w.T.Fatalf("the chart gives the console %d objects of rights, want 3", len(rights))
	}
	if err := deploy.Apply(w.Ctx, w.Config, rights); err != nil {
		w.T.Fatal(err)
	}
	p, err := proxy.Start(w.Ctx, w.Config, proxy.Options{Identity: proxy.ServiceAccount(w.System, "berth-console"), Random: random(w)})
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(p.Stop)
	log, err := os.CreateTemp(w.T.TempDir(), "berth-console-*.log")
	if err != nil {
		w.T.Fatal(err)
	}
	defer log.Close()
	address := w.FreeAddress()
	flags = append(slices.Concat(program.ServeAt(address), flags), "--kubeconfig="+w.File("kubeconfig-*", p.Kubeconfig()), "--cluster-name=test", "--v=2")
	process, err := program.Start(log, simulation.Console(w.T), flags...)
	if err != nil {
		w.T.Fatal(err)
	}
	c := &inCluster{lists: lists, console: &console{Proxy: p, Process: process, w: w, log: log.Name(), root: "https://" + address, client: &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport:     &http.Transport{MaxIdleConnsPerHost: 64, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, //nolint:gosec // its certificate is self-signed
	}}}
	w.T.Cleanup(func() {
		c.Signal(syscall.SIGTERM)
		if err := c.Wait(); err != nil {
			w.T.Errorf("after SIGTERM the console ended with %v", err)
		}
		for _, call := range c.Forbidden() {
			w.T.Errorf("the console is forbidden %s %s", call.Method, call.Path)
		}
		if w.T.Failed() {
			w.T.Logf("the end of the console's log:\n%s", program.Tail(c.log, 60))
		}
	})
	w.Eventually("wait until the console is ready", func() error {
		request, err := http.NewRequestWithContext(w.Ctx, http.MethodGet, c.root+"/readyz", nil)
		if err != nil {
			return err
		}
		response, err := c.client.Do(request)
		if err != nil {
			return errors.Join(err, c.Running())
		}
		response.Body.Close()
		return complainIf(response.StatusCode != http.StatusOK, "%d", response.StatusCode)
	})
	return c
}

// user makes a ServiceAccount, and returns the console as its token sees it.
func (c *inCluster) user(namespace, name string) *console {
	c.w.T.Helper()
	accounts := c.w.Kube.CoreV1().ServiceAccounts(namespace)
	if _, err := accounts.Create(c.w.Ctx, &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		c.w.T.Fatal(err)
	}
	answer, err := accounts.CreateToken(c.w.Ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		c.w.T.Fatal(err)
	}
	return c.with(answer.Status.Token)
}

// with returns the console for somebody with a token.
func (c *inCluster) with(token string) *console {
	c.w.T.Helper()
	theirs := *c.console
	theirs.token = token
	if c.document == nil {
		text, err := os.ReadFile(openAPI(c.w))
		if err != nil {
			c.w.T.Fatal(err)
		}
		c.document = newDocument(c.w.T, text)
	}
	theirs.document = c.document
	return &theirs
}

// firstEvent looks at the stream of events, which only users have.
func (c *console) firstEvent(user bool) {
	c.w.T.Helper()
	ctx, cancel := context.WithTimeout(c.w.Ctx, simulation.Patience)
	defer cancel()
	came := false
	err := c.follow(ctx, func(event string) bool {
		came = strings.Contains(event, "changed") && !strings.Contains(event, red) && !strings.Contains(event, blue)
		return false
	})
	if came != user {
		c.w.T.Errorf("the stream of events of a user (%v) begins: %v, %v", user, came, err)
	}
}

// onlyReads sees that the console may write nothing, and wrote nothing but reviews.
func (c *inCluster) onlyReads() {
	t, w := c.w.T, c.w
	t.Helper()
	for _, call := range c.Seen(func(call proxy.Call) bool { return call.Method != http.MethodGet && !call.WithToken }) {
		if call.Method != http.MethodPost || !strings.HasSuffix(call.Path, "/tokenreviews") && !strings.HasSuffix(call.Path, "/subjectaccessreviews") {
			t.Errorf("the console asks %s %s", call.Method, call.Path)
		}
	}
	config := rest.CopyConfig(w.Config)
	config.Impersonate = proxy.ServiceAccount(w.System, "berth-console")
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	for _, namespace := range []string{w.System, red + "-ns"} {
		asked := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace}}
		answer, err := kube.AuthorizationV1().SelfSubjectRulesReviews().Create(w.Ctx, asked, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var rights []string
		for _, rule := range answer.Status.ResourceRules {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					rights = append(rights, verb+" "+resource)
				}
			}
		}
		slices.Sort(rights)
		want := []string{
			"create selfsubjectaccessreviews", "create selfsubjectreviews", "create selfsubjectrulesreviews", // everybody has these
			"create subjectaccessreviews", "create tokenreviews",
			"list bgppeers", "list floatingips", "list ipclaims", "list ippools", "list nodeassignments", "list nodes", "list pods",
			"watch bgppeers", "watch floatingips", "watch ipclaims", "watch ippools", "watch nodeassignments", "watch nodes", "watch pods",
		}
		if !slices.Equal(rights, want) || answer.Status.Incomplete {
			t.Errorf("in %s the console may %q, want %q", namespace, rights, want)
		}
	}
}

// cached sees that many requests to the console are few to the API server.
func (c *inCluster) cached(users ...*console) {
	t := c.w.T
	t.Helper()
	count := func() int { return len(c.Seen(func(call proxy.Call) bool { return !call.Watch })) }
	before := count()
	const rounds = 250
	for range rounds {
		for _, user := range users {
			user.get(prefix + "/addresses")
		}
	}
	if after := count() - before; after > rounds*len(users)/10 {
		t.Errorf("%d requests to the console were %d to the API server", rounds*len(users), after)
	}
}

// checkList reads a list of addresses as a firewall does: with a token of the list's own, which
// opens nothing else.
func checkList(c *inCluster, users string) {
	w, t := c.w, c.w.T
	t.Helper()
	const token = "bm8gdG9rZW4gb2YgYSB1c2Vy"
	if err := os.WriteFile(filepath.Join(c.lists, "crew"), fmt.Appendf(nil, "%s namespace=%s-ns&kind=StatefulSet&owner=%s-owner\n", token, red, red), 0o600); err != nil {
		t.Fatal(err)
	}
	ask := func(path, password, seen string) *answer {
		return c.browse(http.MethodGet, path, "", func(r *http.Request) {
			r.SetBasicAuth("firewall", password)
			r.Header.Set("If-None-Match", seen)
		})
	}
	first := ask("/lists/crew", token, "")
	if want := "10.0.70.31\n10.0.70.40\n10.0.70.51\n"; first.status != http.StatusOK || string(first.body) != want {
		t.Errorf("the list is %d %q, want the addresses that are held and kept: %q", first.status, first.body, want)
	}
	if said := ask("/lists/crew", token, first.header.Get("ETag")); said.status != http.StatusNotModified {
		t.Errorf("who has the list gets %d %q", said.status, said.body)
	}
	for what, said := range map[string]*answer{
		"with a user's token the list": ask("/lists/crew", users, ""), "with its token another list": ask("/lists/other", token, ""),
		"with its token the API": c.with(token).get(prefix + "/addresses"), "with its token all lists": c.with(token).get(prefix + "/addresses.txt"),
		"with its token a page": c.browse(http.MethodGet, "/addresses", token, nil),
	} {
		if said.status != http.StatusUnauthorized {
			t.Errorf("%s is answered %d %s", what, said.status, said.body)
		}
	}
	holdFor(w, red, "10.0.70.41", "web")
	w.Eventually("wait until the list has the address of a new pod", func() error {
		said := ask("/lists/crew", token, first.header.Get("ETag"))
		return complainIf(said.status != http.StatusOK || !bytes.Contains(said.body, []byte("10.0.70.41\n")), "%d %q", said.status, said.body)
	})
	// A firewall that starts anew needs its list also while the API server is away.
	c.Set(proxy.Faults{Error: 1})
	defer c.Set(proxy.Faults{})
	if said := ask("/lists/crew", token, ""); said.status != http.StatusOK || !bytes.Contains(said.body, []byte("10.0.70.41\n")) {
		t.Errorf("while the API server is away the list is %d %q", said.status, said.body)
	}
}

// browse makes a request as a browser does that has a token in its cookie.
func (c *inCluster) browse(method, path, token string, change func(*http.Request)) *answer {
	return c.with("").ask(method, path, func(r *http.Request) {
		r.Header.Del("Authorization")
		if token != "" {
			r.AddCookie(&http.Cookie{Name: "__Host-berth-console", Value: token})
		}
		if change != nil {
			change(r)
		}
	})
}

// checkLogin logs in and out as a browser does.
func checkLogin(c *inCluster, token string) {
	t := c.w.T
	t.Helper()
	post := func(path, with string, headers map[string]string, form url.Values) *answer {
		return c.browse(http.MethodPost, path, with, func(r *http.Request) {
			text := form.Encode()
			r.Body, r.ContentLength = http.NoBody, 0
			if text != "" {
				r.Body, r.ContentLength = readCloser(text), int64(len(text))
			}
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			for name, value := range headers {
				r.Header.Set(name, value)
			}
		})
	}
	own := map[string]string{"Origin": c.root, "Sec-Fetch-Site": "same-origin"}
	if said := c.browse(http.MethodGet, "/addresses", "", nil); said.status != http.StatusUnauthorized || !bytes.Contains(said.body, []byte(`action="/login"`)) {
		t.Errorf("a browser without a token gets %d %s", said.status, said.body)
	}
	login := c.browse(http.MethodGet, "/login", "", nil)
	if sheet := regexp.MustCompile(`<link rel="stylesheet" href="([^"]+)">`).FindSubmatch(login.body); sheet == nil {
		t.Errorf("the page to log in has no style: %s", login.body)
	} else if said := c.browse(http.MethodGet, string(sheet[1]), "", nil); said.status != http.StatusOK || !strings.HasPrefix(said.header.Get("Content-Type"), "text/css") {
		t.Errorf("the style of the page to log in is %d %v", said.status, said.header)
	}
	for _, path := range []string{"/static/", "/static/0/console.css", "/static/0/../../addresses"} {
		if said := c.browse(http.MethodGet, path, "", nil); said.status < 300 {
			t.Errorf("without a token %s is %d %s", path, said.status, said.body)
		}
	}
	if said := c.browse(http.MethodGet, "/addresses", "", func(r *http.Request) { r.Header.Set("HX-Request", "true") }); said.header.Get("HX-Redirect") != "/login" {
		t.Errorf("a page that is open when the token ends gets %d %v", said.status, said.header)
	}
	said := post("/login", "", own, url.Values{"token": {" " + token + "\n"}})
	cookies := (&http.Response{Header: said.header}).Cookies()
	if said.status != http.StatusSeeOther || said.header.Get("Location") != "/" || len(cookies) != 1 {
		t.Fatalf("the login is answered %d %v %s", said.status, said.header, said.body)
	}
	if got := cookies[0]; got.Name != "__Host-berth-console" || got.Value != token || !got.Secure || !got.HttpOnly || got.SameSite != http.SameSiteStrictMode || got.Path != "/" || got.Domain != "" {
		t.Errorf("the cookie is %+v", got)
	}
	page := c.browse(http.MethodGet, "/addresses", token, nil)
	if page.status != http.StatusOK || !bytes.Contains(page.body, []byte(red+"-pod")) || !bytes.Contains(page.body, []byte(`action="/logout"`)) {
		t.Errorf("with the cookie the page is %d and has a way out: %v", page.status, bytes.Contains(page.body, []byte("/logout")))
	}
	if bytes.Contains(page.body, []byte(token)) {
		t.Error("a page has the token")
	}
	for name, headers := range map[string]map[string]string{
		"by its origin": {"Origin": "https://evil.example"}, "by the browser's word": {"Sec-Fetch-Site": "cross-site"}, "of a neighbour": {"Sec-Fetch-Site": "same-site", "Origin": "https://evil.example"},
	} {
		for _, path := range []string{"/login", "/logout"} {
			if said := post(path, token, headers, url.Values{"token": {token}}); said.status != http.StatusForbidden || said.header.Get("Set-Cookie") != "" {
				t.Errorf("POST %s of another site, known %s: %d %v", path, name, said.status, said.header)
			}
		}
	}
	for name, tried := range map[string]string{"wrong": "a.b.c", "empty": "", "too long for a cookie": strings.Repeat("x", 5000)} {
		if said := post("/login", "", own, url.Values{"token": {tried}}); said.status < 400 || said.status >= 500 || said.header.Get("Set-Cookie") != "" || !bytes.Contains(said.body, []byte("alert")) {
			t.Errorf("a token that is %s: %d %s", name, said.status, said.body)
		}
	}
	if said := post("/addresses", token, own, nil); said.status != http.StatusMethodNotAllowed {
		t.Errorf("POST /addresses: %d", said.status)
	}
	out := post("/logout", token, own, nil)
	if cookies := (&http.Response{Header: out.header}).Cookies(); out.status != http.StatusSeeOther || len(cookies) != 1 || cookies[0].MaxAge >= 0 || cookies[0].Value != "" {
		t.Errorf("the logout is answered %d %v", out.status, out.header)
	}
	stale := c.browse(http.MethodGet, "/", "a.b.c", nil)
	if cookies := (&http.Response{Header: stale.header}).Cookies(); stale.status != http.StatusUnauthorized || len(cookies) != 1 || cookies[0].MaxAge >= 0 {
		t.Errorf("a cookie that is worth nothing any more: %d %v", stale.status, stale.header)
	}
	// Credentials of another kind are none.
	if said := c.browse(http.MethodGet, prefix+"/summary", "", func(r *http.Request) { r.SetBasicAuth("a", token) }); said.status != http.StatusUnauthorized || cmp.Or(said.header.Get("WWW-Authenticate"), "none") != "Bearer" {
		t.Errorf("Basic: %d %v", said.status, said.header)
	}
}

func readCloser(text string) io.ReadCloser { return io.NopCloser(strings.NewReader(text)) }

func random(w *simulation.World) *rand.Rand { return rand.New(rand.NewPCG(seedtest.Seed(w.T), 0)) }

// openAPI is the path of the document that the console serves.
func openAPI(w *simulation.World) string {
	w.T.Helper()
	root, err := deploy.Root()
	if err != nil {
		w.T.Fatal(err)
	}
	return filepath.Join(root, "cmd/kubectl-berth/console/api/openapi.yaml")
}
