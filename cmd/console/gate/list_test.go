// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/cmd/kubectl-berth/console/page"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/register"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/serve"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// The tokens of two lists, of which each opens its own only.
const (
	webToken = "Zm9yIHRoZSBsaXN0IHdlYg"
	dbToken  = "Zm9yIHRoZSBsaXN0IGRiLi"
)

// world is a console with lists, of an API server that accepts no token.
type world struct {
	http.Handler
	t      *testing.T
	copied *register.Register
	dir    string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	// No request reaches it: a list's token is not the API server's business.
	kube, err := kubernetes.NewForConfig(&rest.Config{Host: "http://reviews.example", Transport: refuser{}})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, copied: register.New(), dir: t.TempDir()}
	guard, err := New(kube, w.copied, w.dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.Handler = serve.Secure(guard.Guard(serve.Handler(page.Options{Register: w.copied, ReadOnly: "say so"})))
	w.write("web", webToken+" namespace=shop&kind=IPClaim&owner=web\n")
	w.write("db", dbToken+" namespace=shop&kind=StatefulSet&owner=db\n")
	return w
}

// refuser is an API server to which no token is known.
type refuser struct{}

func (refuser) RoundTrip(*http.Request) (*http.Response, error) {
	answer := httptest.NewRecorder()
	answer.Header().Set("Content-Type", "application/json")
	answer.WriteHeader(http.StatusCreated)
	_, err := answer.WriteString(`{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","status":{}}`)
	return answer.Result(), err
}

// write writes a list as a kubelet does a key of a Secret: by links to a folder that it replaces as
// a whole.
func (w *world) write(list, text string) {
	w.t.Helper()
	const folder = "..2026_12_01_00_00_00.1"
	if err := os.MkdirAll(filepath.Join(w.dir, folder), 0o700); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.dir, folder, list), []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
	for link, to := range map[string]string{"..data": folder, list: "..data/" + list} {
		if err := os.Symlink(to, filepath.Join(w.dir, link)); err != nil && !os.IsExist(err) {
			w.t.Fatal(err)
		}
	}
}

// put makes an address of an owner, which a pod holds or which is kept.
func (w *world) put(addr, namespace, kind, name, pod string) {
	ip := &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NameOf(netip.MustParseAddr(addr))}, Spec: v1alpha1.FloatingIPSpec{
		Address: addr, Pool: "web", Owner: &v1alpha1.Owner{Kind: kind, Namespace: namespace, Name: name},
	}}
	if pod != "" {
		ip.Spec.Pod = &v1alpha1.PodReference{Name: pod}
	}
	w.copied.PutFloatingIP(ip)
}

func (w *world) ask(path string, change func(*http.Request)) *httptest.ResponseRecorder {
	r, answer := httptest.NewRequest(http.MethodGet, path, nil), httptest.NewRecorder()
	change(r)
	w.ServeHTTP(answer, r)
	return answer
}

func basic(token string) func(*http.Request) {
	return func(r *http.Request) { r.SetBasicAuth("firewall", token) }
}

func bearer(token string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
}

// A list has the addresses of its query, held, kept and spare, and follows them; who has it gets it
// once.
func TestList(t *testing.T) {
	w := newWorld(t)
	w.put("10.0.70.12", "shop", "IPClaim", "web", "web-1")
	if said := w.ask("/lists/web", basic(webToken)); said.Code != http.StatusServiceUnavailable {
		t.Errorf("before the console has read all addresses: %d %q", said.Code, said.Body)
	}
	w.copied.ReplaceFloatingIPs(nil)
	w.put("10.0.70.12", "shop", "IPClaim", "web", "web-1")
	w.put("10.0.70.9", "shop", "IPClaim", "web", "")
	w.put("2001:db8::1", "shop", "IPClaim", "web", "web-1")
	// These are others': of the same name and another kind, in another namespace, of nobody.
	w.put("10.0.70.20", "shop", "Deployment", "web", "web-2")
	w.put("10.0.70.21", "evil", "IPClaim", "web", "web-1")
	w.copied.PutFloatingIP(&v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: "10.0.70.22"}, Spec: v1alpha1.FloatingIPSpec{Address: "10.0.70.22", Reserved: true}})
	lists := func(path, want string) *httptest.ResponseRecorder {
		t.Helper()
		said := w.ask(path, basic(webToken))
		if said.Code != http.StatusOK || said.Body.String() != want {
			t.Errorf("GET %s: %d %q, want %q", path, said.Code, said.Body, want)
		}
		return said
	}
	first := lists("/lists/web", "10.0.70.9\n10.0.70.12\n2001:db8::1\n")
	if kind := first.Header().Get("Content-Type"); kind != "text/plain; charset=utf-8" {
		t.Errorf("its type is %q", kind)
	}
	lists("/lists/web?family=IPv4", "10.0.70.9\n10.0.70.12\n")
	lists("/lists/web?family=IPv6", "2001:db8::1\n")
	unchanged := func(r *http.Request) {
		bearer(webToken)(r)
		r.Header.Set("If-None-Match", first.Header().Get("ETag"))
	}
	if said := w.ask("/lists/web", unchanged); said.Code != http.StatusNotModified || said.Body.Len() > 0 {
		t.Errorf("who has it gets it again: %d %q", said.Code, said.Body)
	}
	w.put("10.0.70.13", "shop", "IPClaim", "web", "web-3")
	if said := w.ask("/lists/web", unchanged); said.Code != http.StatusOK || !strings.Contains(said.Body.String(), "10.0.70.13\n") {
		t.Errorf("after a new pod: %d %q", said.Code, said.Body)
	}
	w.copied.DeleteFloatingIP("10.0.70.12")
	lists("/lists/web?family=IPv4", "10.0.70.9\n10.0.70.13\n")
	// A list is never of more than it says.
	for _, more := range []string{"namespace=evil", "owner=db", "family=", "family=4", "limit=1", "%zz", "pool=web;owner=db"} {
		if said := w.ask("/lists/web?"+more, basic(webToken)); said.Code != http.StatusBadRequest {
			t.Errorf("with %s: %d %q", more, said.Code, said.Body)
		}
	}
	lists("/lists/web?pool=db", "")
}

// A list's token opens that list, as long as it is there, and nothing else.
func TestListToken(t *testing.T) {
	w := newWorld(t)
	w.copied.ReplaceFloatingIPs(nil)
	w.put("10.0.70.12", "shop", "IPClaim", "web", "web-1")
	w.write("short", "abc pool=web\n")
	w.write("bare", webToken+"\n")
	w.write("wide", webToken+" namespace=&kind=IPClaim\n")
	w.write("vague", webToken+" kind=IPClaim&owner=web\n")
	if err := os.WriteFile(filepath.Join(filepath.Dir(w.dir), "outside"), []byte(webToken+" pool=web\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		path   string
		change func(*http.Request)
		want   int
	}{
		"as a password":            {"/lists/web", basic(webToken), http.StatusOK},
		"as a bearer token":        {"/lists/web", bearer(webToken), http.StatusOK},
		"none":                     {"/lists/web", func(*http.Request) {}, http.StatusUnauthorized},
		"empty":                    {"/lists/web", basic(""), http.StatusUnauthorized},
		"wrong":                    {"/lists/web", basic(webToken + "x"), http.StatusUnauthorized},
		"of another list":          {"/lists/web", basic(dbToken), http.StatusUnauthorized},
		"for a list that is not":   {"/lists/no", basic(webToken), http.StatusUnauthorized},
		"for the folder":           {"/lists/.", basic(webToken), http.StatusTemporaryRedirect},
		"for a file elsewhere":     {"/lists/..%2Foutside", basic(webToken), http.StatusUnauthorized},
		"in the URL":               {"/lists/web?token=" + webToken, func(*http.Request) {}, http.StatusUnauthorized},
		"in the cookie":            {"/lists/web", func(r *http.Request) { r.AddCookie(&http.Cookie{Name: cookie, Value: webToken}) }, http.StatusUnauthorized},
		"that can be guessed":      {"/lists/short", basic("abc"), http.StatusUnauthorized},
		"of a list without query":  {"/lists/bare", basic(webToken), http.StatusUnauthorized},
		"of an empty namespace":    {"/lists/wide", basic(webToken), http.StatusBadRequest},
		"of any namespace's owner": {"/lists/vague", basic(webToken), http.StatusBadRequest},
		"to all lists":             {"/api/v1/addresses.txt", bearer(webToken), http.StatusUnauthorized},
		"to the API":               {"/api/v1/addresses", bearer(webToken), http.StatusUnauthorized},
		"to the API as a password": {"/api/v1/addresses", basic(webToken), http.StatusUnauthorized},
		"to a page":                {"/addresses", bearer(webToken), http.StatusUnauthorized},
		"to another method": {"/lists/web", func(r *http.Request) {
			basic(webToken)(r)
			r.Method = http.MethodPost
		}, http.StatusUnauthorized},
	} {
		said := w.ask(test.path, test.change)
		if said.Code != test.want {
			t.Errorf("%s: %d, want %d: %s", name, said.Code, test.want, said.Body)
		}
		if said.Code != http.StatusOK && strings.Contains(said.Body.String(), "10.0.70.12") {
			t.Errorf("%s: the answer has the address: %s", name, said.Body)
		}
	}
	if err := os.Remove(filepath.Join(w.dir, "web")); err != nil {
		t.Fatal(err)
	}
	if said := w.ask("/lists/web", basic(webToken)); said.Code != http.StatusUnauthorized {
		t.Errorf("after its file was deleted: %d %s", said.Code, said.Body)
	}
}
