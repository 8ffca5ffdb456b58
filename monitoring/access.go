// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// access asks the API server who a client is, and what it may.
type access struct {
	api kubernetes.Interface
	// decided has answers for a while, by [question].
	decided *cache.Expiring
}

// question is who wants what. The token itself is not kept.
type question struct {
	token      [sha256.Size]byte
	verb, path string
}

// answer is what a client is told that may not: 0 if it may.
type answer struct {
	code int
	text string
}

const (
	// How often one program asks about others, whoever asks it: tokens that
	// mean nothing must not keep it from its own requests, nor load the API
	// server.
	reviewQPS, reviewBurst = 10, 20
	reviewTimeout          = 10 * time.Second
	// decisionTTL is how long a decision holds: kube-scheduler's value.
	decisionTTL = 10 * time.Second
)

func newAccess(config *rest.Config) (*access, error) {
	config = rest.CopyConfig(config)
	config.RateLimiter, config.QPS, config.Burst = nil, reviewQPS, reviewBurst
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create the client of reviews: %w", err)
	}
	return &access{api: api, decided: cache.NewExpiring()}, nil
}

// guard lets those through to a handler that may use the request's verb on its
// path.
func (a *access) guard(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch no := a.decide(r); {
		case no.code == 0:
			handler.ServeHTTP(w, r)
		case no.code == http.StatusUnauthorized:
			w.Header().Set("WWW-Authenticate", "Bearer")
			fallthrough
		default:
			http.Error(w, no.text, no.code)
		}
	})
}

func (a *access) decide(r *http.Request) answer {
	token := bearerToken(r)
	if token == "" {
		return answer{http.StatusUnauthorized, "Unauthorized: send a bearer token of the cluster"}
	}
	q := question{sha256.Sum256([]byte(token)), strings.ToLower(r.Method), r.URL.Path}
	if known, ok := a.decided.Get(q); ok {
		return known.(answer)
	}
	ctx, cancel := context.WithTimeout(r.Context(), reviewTimeout)
	defer cancel()
	decision, err := a.review(ctx, token, q)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot decide about a request", "path", q.path, "client", r.RemoteAddr)
		return answer{http.StatusInternalServerError, "The API server cannot be asked who you are and what you may; see this program's log"}
	}
	a.decided.Set(q, decision, decisionTTL)
	return decision
}

func (a *access) review(ctx context.Context, token string, q question) (answer, error) {
	user, err := a.authenticate(ctx, token)
	if err != nil {
		return answer{}, err
	}
	if user == nil {
		return answer{http.StatusUnauthorized, "Unauthorized: the API server does not know the bearer token"}, nil
	}
	may, err := a.authorize(ctx, user, q)
	if err != nil || may {
		return answer{}, err
	}
	return answer{http.StatusForbidden, fmt.Sprintf("Forbidden: user %q may not %s %s; the ClusterRole berth-metrics-reader lets it", user.Username, q.verb, q.path)}, nil
}

// authenticate returns nil for a token that is nobody's.
func (a *access) authenticate(ctx context.Context, token string) (*authenticationv1.UserInfo, error) {
	review, err := a.api.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("review a token: %w", err)
	}
	if !review.Status.Authenticated {
		return nil, nil
	}
	user := review.Status.User
	// The API server adds it to its own clients only.
	const authenticated = "system:authenticated"
	if !slices.Contains(user.Groups, authenticated) {
		user.Groups = append(user.Groups, authenticated)
	}
	return &user, nil
}

func (a *access) authorize(ctx context.Context, user *authenticationv1.UserInfo, q question) (bool, error) {
	extra := make(map[string]authorizationv1.ExtraValue, len(user.Extra))
	for key, values := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	review, err := a.api.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Verb: q.verb, Path: q.path},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("review the access of %q: %w", user.Username, err)
	}
	return review.Status.Allowed && !review.Status.Denied, nil
}

// bearerToken returns the token of RFC 6750, section 2.1, or nothing.
func bearerToken(r *http.Request) string {
	scheme, token, _ := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}
