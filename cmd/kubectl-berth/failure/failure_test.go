// SPDX-License-Identifier: Apache-2.0

package failure

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/ipam/client"
)

// Explain tells the user about errors of the API server, and about the lack of one.
// The bodies come from a real one; test/kubectl asks it.
func TestExplain(t *testing.T) {
	const forbidden = `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"floatingips.berth.dev \"10.0.70.1\" is forbidden: User \"%s\" cannot get resource \"floatingips\" in API group \"berth.dev\" at the cluster scope","reason":"Forbidden","details":{"name":"10.0.70.1","group":"berth.dev","kind":"floatingips"},"code":403}`
	for _, test := range []struct {
		name string
		code int
		body string
		want string
	}{
		{"no right", http.StatusForbidden, fmt.Sprintf(forbidden, "ann@example.org"), `get it: user "ann@example.org" may not get floatingips.berth.dev: ask an administrator for the ClusterRole berth-viewer (if there is none, the chart's roles.enabled is false): kubectl create clusterrolebinding berth-viewer-ann-example.org --clusterrole=berth-viewer --user=ann@example.org`},
		{"an account has no right", http.StatusForbidden, fmt.Sprintf(forbidden, "system:serviceaccount:shop:bot"), `get it: user "system:serviceaccount:shop:bot" may not get floatingips.berth.dev: ask an administrator for the ClusterRole berth-viewer (if there is none, the chart's roles.enabled is false): kubectl create clusterrolebinding berth-viewer-system-serviceaccount-shop-bot --clusterrole=berth-viewer --serviceaccount=shop:bot`},
		{"no right to write", http.StatusForbidden, strings.ReplaceAll(fmt.Sprintf(forbidden, "ann"), "cannot get", "cannot delete"), `get it: user "ann" may not delete floatingips.berth.dev: ask an administrator for this right; kubectl auth can-i delete floatingips.berth.dev tells when you have it`},
		{"no right to pods", http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"pods is forbidden: User \"ann\" cannot list resource \"pods\" in API group \"\" in the namespace \"shop\"","reason":"Forbidden","details":{"kind":"pods"},"code":403}`, `get it: user "ann" may not list pods in namespace shop: ask an administrator for this right; kubectl auth can-i list pods -n shop tells when you have it`},
		{"an admission policy says why", http.StatusForbidden, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"it is held","reason":"Forbidden","code":403}`, "get it: it is held"},
		{"no credentials", http.StatusUnauthorized, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}`, "get it: the API server does not accept the credentials: log in again, or choose others with --context, --user or --token"},
		{"no CRDs", http.StatusNotFound, "404 page not found", "get it: the cluster does not serve floatingips.berth.dev: Berth is not installed there (or its CRDs were applied a moment ago); check --context, or see docs/how-to/installation.md"},
		{"no such object", http.StatusNotFound, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"floatingips.berth.dev \"10.0.70.1\" not found","reason":"NotFound","details":{"name":"10.0.70.1","group":"berth.dev","kind":"floatingips"},"code":404}`, `get it: floatingips.berth.dev "10.0.70.1" not found`},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if test.body[0] == '{' {
					w.Header().Set("Content-Type", "application/json")
				}
				w.WriteHeader(test.code)
				fmt.Fprint(w, test.body)
			}))
			defer server.Close()
			err := get(t, server.URL)
			if got := Explain(err); got != test.want {
				t.Errorf("the user reads\n%s\nwant\n%s\nof %v", got, test.want, err)
			}
			if got, want := IsNoSuch(err), test.name == "no such object"; got != want {
				t.Errorf("IsNoSuch is %v, want %v", got, want)
			}
		})
	}
}

// Explain tells the user that the cluster cannot be reached.
func TestExplainConnection(t *testing.T) {
	down := httptest.NewServer(nil)
	down.Close()
	secure := httptest.NewTLSServer(nil)
	defer secure.Close()
	for _, test := range []struct{ name, url, want string }{
		{"nobody listens", down.URL, "get it: cannot reach the API server " + down.URL + " (connection refused): check --context or --kubeconfig (kubectl config current-context says which cluster is chosen), and that this machine has a way there"},
		{"another certificate", secure.URL, "get it: the certificate of the API server " + secure.URL + " is not the one that the kubeconfig trusts: check the cluster's certificate-authority and server there, and --context"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := Explain(get(t, test.url)); got != test.want {
				t.Errorf("the user reads\n%s\nwant\n%s", got, test.want)
			}
		})
	}
}

func get(t *testing.T, url string) error {
	t.Helper()
	berth, err := client.NewForConfig(&rest.Config{Host: url})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = berth.FloatingIPs.Get(t.Context(), "10.0.70.1", metav1.GetOptions{}); err == nil {
		t.Fatal("there was no error")
	}
	return fmt.Errorf("get it: %w", err)
}
