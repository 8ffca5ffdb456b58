// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/lab"
)

// The metrics of Berth's programs are for whom the ClusterRole in manifests/ is
// bound to; their health is for everybody.
func TestMetricsAreGuarded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	prometheus, tenant := w.token("prometheus"), w.token("tenant")
	w.bindMetricsReader("prometheus")
	controller, scheduler := freeAddress(t), freeAddress(t)
	w.controller(serveAt(controller)...)
	w.scheduler(schedulerOptions{serve: scheduler})
	for program, address := range map[string]string{"berth-controller": controller, "berth-scheduler": scheduler} {
		t.Run(program, func(t *testing.T) {
			w := w.on(t)
			for _, path := range []string{"/healthz", "/readyz"} {
				w.eventually("wait for "+path, func() error {
					if code, text, err := w.fetch("https://"+address+path, ""); err != nil || code != http.StatusOK {
						return fmt.Errorf("%d %s: %w", code, text, err)
					}
					return nil
				})
			}
			for _, tc := range []struct {
				who, token string
				codes      []int
			}{
				// kube-scheduler takes those without a token for system:anonymous.
				{"nobody", "", []int{http.StatusUnauthorized, http.StatusForbidden}},
				{"a token that is nobody's", "x" + prometheus, []int{http.StatusUnauthorized}},
				{"a ServiceAccount without the right", tenant, []int{http.StatusForbidden}},
				{"a ServiceAccount with the right", prometheus, []int{http.StatusOK}},
				{"an administrator", w.config.BearerToken, []int{http.StatusOK}},
			} {
				code, text, err := w.fetch("https://"+address+"/metrics", tc.token)
				if err != nil {
					t.Errorf("%s: %v", tc.who, err)
					continue
				}
				if !slices.Contains(tc.codes, code) {
					t.Errorf("%s: %d, want %v", tc.who, code, tc.codes)
				}
				if has := strings.Contains(text, "berth_"); has != (code == http.StatusOK) {
					t.Errorf("%s: code %d, metrics: %t\n%.300s", tc.who, code, has, text)
				}
			}
			if code, text, err := w.fetch("http://"+address+"/metrics", prometheus); err == nil && code == http.StatusOK {
				t.Errorf("serves metrics in plaintext: %.300s", text)
			}
		})
	}
}

// token makes a ServiceAccount and returns a token of it.
func (w *world) token(account string) string {
	w.t.Helper()
	accounts := w.kube.CoreV1().ServiceAccounts(namespace)
	if _, err := accounts.Create(w.ctx, &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	request, err := accounts.CreateToken(w.ctx, account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return request.Status.Token
}

// bindMetricsReader lets a ServiceAccount read metrics, as docs/monitoring.md says.
func (w *world) bindMetricsReader(account string) {
	w.t.Helper()
	const role = "berth-metrics-reader"
	_, err := w.kube.RbacV1().ClusterRoleBindings().Create(w.ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: account}},
	}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
}

// freeAddress returns one of this host that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// serveAt are the flags of a program that is asked at an address.
func serveAt(address string) []string {
	host, port, _ := net.SplitHostPort(address)
	return []string{"--bind-address=" + host, "--secure-port=" + port}
}

// fetch asks a program, with a token if there is one.
func (w *world) fetch(url, token string) (code int, text string, err error) {
	request, err := http.NewRequestWithContext(w.ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	// The program's certificate is its own.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

// scrapes waits until a program's metrics have some lines and not others.
func (w *world) scrapes(url string, with, without []string) {
	w.t.Helper()
	w.eventually("wait for the metrics", func() error {
		code, text, err := w.fetch(url+"/metrics", w.config.BearerToken)
		if err != nil {
			return err
		}
		if code != http.StatusOK {
			return fmt.Errorf("%d %s", code, text)
		}
		for _, line := range with {
			if !strings.Contains(text, line+"\n") {
				return fmt.Errorf("they lack %q", line)
			}
		}
		for _, line := range without {
			if strings.Contains(text, line) {
				return fmt.Errorf("they have %q", line)
			}
		}
		return nil
	})
}
