// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/program"
)

// The metrics of Berth's programs are for whom the ClusterRole in manifests/ is
// bound to; their health is for everybody.
func TestMetricsAreGuarded(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	prometheus, tenant := tokenOf(w, "prometheus"), tokenOf(w, "tenant")
	bindMetricsReader(w, "prometheus")
	controller, scheduler := w.FreeAddress(), w.FreeAddress()
	w.Controller(program.ServeAt(controller)...)
	w.Scheduler(simulation.SchedulerOptions{Serve: scheduler})
	for program, address := range map[string]string{"berth-controller": controller, "berth-scheduler": scheduler} {
		t.Run(program, func(t *testing.T) {
			w := w.On(t)
			for _, path := range []string{"/healthz", "/readyz"} {
				w.Eventually("wait for "+path, func() error {
					if code, text, err := w.Fetch("https://"+address+path, ""); err != nil || code != http.StatusOK {
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
				{"an administrator", w.Config.BearerToken, []int{http.StatusOK}},
			} {
				code, text, err := w.Fetch("https://"+address+"/metrics", tc.token)
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
			if code, text, err := w.Fetch("http://"+address+"/metrics", prometheus); err == nil && code == http.StatusOK {
				t.Errorf("serves metrics in plaintext: %.300s", text)
			}
		})
	}
}

// tokenOf makes a ServiceAccount and returns a token of it.
func tokenOf(w *simulation.World, account string) string {
	w.T.Helper()
	accounts := w.Kube.CoreV1().ServiceAccounts(simulation.Namespace)
	if _, err := accounts.Create(w.Ctx, &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{}); err != nil {
		w.T.Fatal(err)
	}
	request, err := accounts.CreateToken(w.Ctx, account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		w.T.Fatal(err)
	}
	return request.Status.Token
}

// bindMetricsReader lets a ServiceAccount read metrics, as docs/how-to/monitoring.md says.
func bindMetricsReader(w *simulation.World, account string) {
	w.T.Helper()
	const role = "berth-metrics-reader"
	_, err := w.Kube.RbacV1().ClusterRoleBindings().Create(w.Ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: simulation.Namespace, Name: account}},
	}, metav1.CreateOptions{})
	if err != nil {
		w.T.Fatal(err)
	}
}
