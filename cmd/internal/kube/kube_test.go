// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

// Each client asks for its kind at the path of the API, in runtime.ContentTypeProtobuf, and returns
// the API server's answer.
func TestRequests(t *testing.T) {
	for want, ask := range map[string]func(ctx context.Context, c *Client) error{
		"GET /api/v1/namespaces/shop/pods/web-0": func(ctx context.Context, c *Client) error {
			_, err := c.Pods("shop").Get(ctx, "web-0", metav1.GetOptions{})
			return err
		},
		"GET /api/v1/pods?fieldSelector=spec.nodeName%3Dn": func(ctx context.Context, c *Client) error {
			_, err := c.Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=n"})
			return err
		},
		"GET /api/v1/nodes": func(ctx context.Context, c *Client) error {
			_, err := c.Nodes.List(ctx, metav1.ListOptions{})
			return err
		},
		"GET /api/v1/namespaces?watch=true": func(ctx context.Context, c *Client) error {
			_, err := c.Namespaces.Watch(ctx, metav1.ListOptions{})
			return err
		},
		"GET /apis/networking.k8s.io/v1/servicecidrs": func(ctx context.Context, c *Client) error {
			_, err := c.ServiceCIDRs.List(ctx, metav1.ListOptions{})
			return err
		},
		"GET /apis/networking.k8s.io/v1/networkpolicies": func(ctx context.Context, c *Client) error {
			_, err := c.NetworkPolicies.List(ctx, metav1.ListOptions{})
			return err
		},
		"POST /api/v1/namespaces/shop/events": func(ctx context.Context, c *Client) error {
			_, err := c.Events("shop").Create(ctx, &corev1.Event{}, metav1.CreateOptions{})
			return err
		},
		"POST /apis/authentication.k8s.io/v1/tokenreviews": func(ctx context.Context, c *Client) error {
			_, err := c.TokenReviews.Create(ctx, &authenticationv1.TokenReview{}, metav1.CreateOptions{})
			return err
		},
		"POST /apis/authorization.k8s.io/v1/subjectaccessreviews": func(ctx context.Context, c *Client) error {
			_, err := c.SubjectAccessReviews.Create(ctx, &authorizationv1.SubjectAccessReview{}, metav1.CreateOptions{})
			return err
		},
	} {
		t.Run(want, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if got := r.Method + " " + r.URL.RequestURI(); got != want {
					t.Errorf("asks %s", got)
				}
				if agent := r.UserAgent(); agent != rest.DefaultKubernetesUserAgent() {
					t.Errorf("says that it is %s", agent)
				}
				if accept := r.Header.Get("Accept"); !strings.HasPrefix(accept, runtime.ContentTypeProtobuf) {
					t.Errorf("accepts %s", accept)
				}
				if kind := r.Header.Get("Content-Type"); r.Method == http.MethodPost && kind != runtime.ContentTypeProtobuf {
					t.Errorf("sends %s", kind)
				}
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusConflict)
				_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Conflict","code":409}`))
			}))
			defer server.Close()
			client, err := NewForConfig(&rest.Config{Host: server.URL})
			if err != nil {
				t.Fatal(err)
			}
			if err := ask(t.Context(), client); !apierrors.IsConflict(err) {
				t.Errorf("the answer is %v, want a conflict", err)
			}
		})
	}
}

// An answer in JSON is read, too.
func TestAnswer(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web-0"},"status":{"phase":"Running"}}`))
	}))
	defer server.Close()
	client, err := NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	pod, err := client.Pods("shop").Get(t.Context(), "web-0", metav1.GetOptions{})
	if err != nil || pod.Name != "web-0" || pod.Status.Phase != corev1.PodRunning {
		t.Errorf("the answer is %+v, %v", pod, err)
	}
}
