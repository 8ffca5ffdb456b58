// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// access authenticates and authorizes clients at the API server.
type access struct {
	authenticator authenticator.Request
	authorizer    authorizer.Authorizer
}

const (
	// reviewQPS and reviewBurst limit the reviews of this process: requests with
	// invalid tokens must not slow down its own requests, nor load the API server.
	reviewQPS, reviewBurst = 10, 20
	reviewTimeout          = 10 * time.Second
	// decisionTTL is how long a decision is cached: kube-scheduler's value.
	decisionTTL = 10 * time.Second
)

// reviewBackoff is the backoff after a temporary failure of the API server.
var reviewBackoff = wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 3}

func newAccess(config *rest.Config) (*access, error) {
	config = rest.CopyConfig(config)
	config.RateLimiter, config.QPS, config.Burst = nil, reviewQPS, reviewBurst
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create the client for reviews: %w", err)
	}
	authentication, _, err := authenticatorfactory.DelegatingAuthenticatorConfig{
		TokenAccessReviewClient: api.AuthenticationV1(), TokenAccessReviewTimeout: reviewTimeout,
		WebhookRetryBackoff: &reviewBackoff, CacheTTL: decisionTTL,
	}.New()
	if err != nil {
		return nil, fmt.Errorf("delegate authentication: %w", err)
	}
	authorization, err := authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: api.AuthorizationV1(), WebhookRetryBackoff: &reviewBackoff,
		AllowCacheTTL: decisionTTL, DenyCacheTTL: decisionTTL,
	}.New()
	if err != nil {
		return nil, fmt.Errorf("delegate authorization: %w", err)
	}
	return &access{authentication, authorization}, nil
}

// guard passes a request to the handler if the client may use the verb on the path.
func (a *access) guard(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		verb := strings.ToLower(r.Method)
		client, authenticated, err := a.authenticator.AuthenticateRequest(r)
		if !authenticated {
			if err != nil {
				klog.FromContext(r.Context()).V(2).Info("Did not authenticate a client", "path", r.URL.Path, "client", r.RemoteAddr, "err", err)
			}
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "Unauthorized: send a bearer token that the API server accepts", http.StatusUnauthorized)
			return
		}
		decision, _, err := a.authorizer.Authorize(r.Context(), authorizer.AttributesRecord{User: client.User, Verb: verb, Path: r.URL.Path})
		switch {
		case decision == authorizer.DecisionAllow:
			handler.ServeHTTP(w, r)
		case err != nil:
			klog.FromContext(r.Context()).Error(err, "Failed to authorize a request", "path", r.URL.Path, "client", r.RemoteAddr)
			http.Error(w, "The API server cannot be asked for your permissions; see this program's log", http.StatusInternalServerError)
		default:
			http.Error(w, fmt.Sprintf("Forbidden: user %q may not %s %s; the ClusterRole berth-metrics-reader grants it", client.User.GetName(), verb, r.URL.Path), http.StatusForbidden)
		}
	})
}
