// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// The API server serves Berth's programs as it serves those of Kubernetes, its agents apart, and no
// other ServiceAccount.
func TestPriority(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	flows := w.Kube.FlowcontrolV1()
	served := func(user, path string) (string, error) {
		config := rest.CopyConfig(w.Config)
		config.Impersonate.UserName = user
		config.Impersonate.Groups = []string{"system:serviceaccounts", "system:authenticated"}
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			return "", err
		}
		request, err := http.NewRequestWithContext(w.Ctx, http.MethodGet, config.Host+path, nil)
		if err != nil {
			return "", err
		}
		response, err := client.Do(request)
		if err != nil {
			return "", err
		}
		response.Body.Close()
		schemas, err := flows.FlowSchemas().List(w.Ctx, metav1.ListOptions{})
		if err != nil {
			return "", err
		}
		for _, schema := range schemas.Items {
			if string(schema.UID) == response.Header.Get("X-Kubernetes-PF-FlowSchema-UID") {
				return schema.Name + " " + schema.Spec.PriorityLevelConfiguration.Name, nil
			}
		}
		return "", fmt.Errorf("%s: no FlowSchema has UID %q", response.Status, response.Header.Get("X-Kubernetes-PF-FlowSchema-UID"))
	}
	account := func(name string) string { return "system:serviceaccount:" + w.System + ":" + name }
	lease := "/apis/coordination.k8s.io/v1/namespaces/" + w.System + "/leases/"
	for _, test := range []struct{ user, path, want string }{
		{account("berth-scheduler"), lease + "berth-scheduler", "berth-leader-election leader-election"},
		{account("berth-controller"), lease + "berth-controller", "berth-leader-election leader-election"},
		{account("berth-scheduler"), "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler", "berth workload-high"},
		{account("berth-scheduler"), "/api/v1/pods", "berth workload-high"},
		{account("berth-controller"), "/apis/berth.dev/v1alpha1/floatingips", "berth workload-high"},
		{account("berth-agent"), "/apis/berth.dev/v1alpha1/floatingips/10.0.70.2", "berth-agents berth-agents"},
		{account("berth-agent"), lease + "berth-scheduler", "berth-agents berth-agents"},
		{account("berth-agent"), "/version", "berth-agents berth-agents"},
		{account("another"), lease + "berth-scheduler", "service-accounts workload-low"},
		{"system:serviceaccount:shop:berth-scheduler", "/api/v1/pods", "service-accounts workload-low"},
	} {
		w.Eventually(test.user+" gets "+test.path, func() error {
			got, err := served(test.user, test.path)
			if err == nil && got != test.want {
				err = fmt.Errorf("%s asks for %s: served by %s, want %s", test.user, test.path, got, test.want)
			}
			return err
		})
	}
}
