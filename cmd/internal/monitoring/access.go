// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/cmd/internal/kube"
)

// access authenticates and authorizes clients at the API server. Safe for concurrent use.
type access struct {
	api *kube.Client
	// decided has the user of each identity, and the users' permissions, by right, as far as the API
	// server could decide.
	decided *cache.LRUExpireCache
	doors   *doorkeeper
}

// token is the hash of a bearer token, so that no tokens are kept.
type token [sha256.Size]byte

// identity is a token that shows a user to an audience.
type identity struct {
	token    token
	audience string
}

// right is the access that a client asks for.
type right struct {
	token      token
	verb, path string
}

const (
	reviewTimeout = 10 * time.Second
	// decisionTTL is how long a decision is cached: kube-scheduler's value.
	decisionTTL = 10 * time.Second
	// decisions is how many are cached at most; a decision takes less than a kilobyte.
	decisions = 1024
	// allAuthenticated is the group of all users that the API server knows.
	allAuthenticated = "system:authenticated"
)

// reviewBackoff is the backoff after a temporary failure of the API server.
var reviewBackoff = wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 3}

func newAccess(config *rest.Config) (*access, error) {
	config = rest.CopyConfig(config)
	// The doorkeeper limits, and reviews are not to wait for the program's own requests.
	config.RateLimiter, config.QPS = nil, -1
	api, err := kube.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &access{api: api, decided: cache.NewLRUExpireCache(decisions), doors: newDoorkeeper()}, nil
}

// Resources are served to clients that the API server knows by their tokens, and that may get the
// resources' paths.
type Resources struct {
	// Method is the method of all; empty: GET.
	Method string
	Paths  []string
	// Header has the bearer token.
	Header string
	// Audience is whom the tokens must be for; empty: the API server.
	Audience string
	// Role is the ClusterRole that grants the paths, for error messages.
	Role string
	// Handler serves the paths.
	Handler http.Handler
}

// guard passes a request to the handler if the client may use the verb on the path.
func (a *access) guard(of Resources) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, logger := r.Context(), klog.FromContext(r.Context())
		bearer, given := bearerOf(r.Header.Get(of.Header))
		shown, from := token(sha256.Sum256([]byte(bearer))), sourceOf(r.RemoteAddr)
		var user *authenticationv1.UserInfo
		var err error
		if given {
			user, err = a.userOf(ctx, bearer, identity{shown, of.Audience}, from)
		}
		switch {
		case errors.Is(err, errTooMany):
			logger.V(2).Info("Did not authenticate a client", "path", r.URL.Path, "client", r.RemoteAddr, "err", err)
			w.Header().Set("Retry-After", "1")
			http.Error(w, "Too many tokens that are not known: try again", http.StatusTooManyRequests)
			return
		case err != nil:
			logger.Error(err, "Failed to authenticate a client", "path", r.URL.Path, "client", r.RemoteAddr)
			http.Error(w, "The API server cannot be asked who you are; see this program's log", http.StatusInternalServerError)
			return
		case user == nil:
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, fmt.Sprintf("Unauthorized: send a bearer token for %s in the header %s", cmp.Or(of.Audience, "the API server"), of.Header), http.StatusUnauthorized)
			return
		}
		asked := right{token: shown, verb: strings.ToLower(r.Method), path: r.URL.Path}
		allowed, err := a.allows(ctx, user, asked)
		switch {
		case err != nil:
			logger.Error(err, "Failed to authorize a request", "path", asked.path, "client", r.RemoteAddr)
			http.Error(w, "The API server cannot be asked for your permissions; see this program's log", http.StatusInternalServerError)
		case allowed:
			a.doors.knows(shown, from)
			if of.Audience != "" {
				// The API server's audit log says who got the token with this ID.
				logger.Info("Answering", "path", asked.path, "user", user.Username, "token", strings.Join(user.Extra[credentialID], " "))
			}
			of.Handler.ServeHTTP(w, r)
		default:
			http.Error(w, fmt.Sprintf("Forbidden: user %q may not %s %s; the ClusterRole %s grants it", user.Username, asked.verb, asked.path, of.Role), http.StatusForbidden)
		}
	})
}

// credentialID is the key under which the API server says which token a user has.
const credentialID = "authentication.kubernetes.io/credential-id"

// bearerOf returns the token of a header (RFC 6750, section 2.1).
func bearerOf(header string) (bearer string, given bool) {
	scheme, bearer, _ := strings.Cut(strings.TrimSpace(header), " ")
	return bearer, strings.EqualFold(scheme, "bearer") && bearer != "" && !strings.Contains(bearer, " ")
}

// errTooMany is returned where the API server is not asked about a token, because too many others
// were shown.
var errTooMany = errors.New("too many tokens that are not known")

// userOf returns the user of a token from a source; nil where the API server does not accept it for
// the audience. It blocks for requests.
func (a *access) userOf(ctx context.Context, bearer string, shown identity, from netip.Prefix) (*authenticationv1.UserInfo, error) {
	if known, ok := a.decided.Get(shown); ok {
		user, _ := known.(*authenticationv1.UserInfo)
		return user, nil
	}
	if !a.doors.admits(shown.token, from) {
		return nil, errTooMany
	}
	asked := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: bearer}}
	if shown.audience != "" {
		asked.Spec.Audiences = []string{shown.audience}
	}
	answer, err := review(ctx, a.api.TokenReviews, asked)
	if err != nil {
		return nil, fmt.Errorf("review a token: %w", err)
	}
	var user *authenticationv1.UserInfo
	// An authenticator that knows no audiences may accept a token for others.
	if status := &answer.Status; status.Authenticated && (shown.audience == "" || slices.Contains(status.Audiences, shown.audience)) {
		// The answer has the token, too.
		found := status.User
		user = &found
		if !slices.Contains(user.Groups, allAuthenticated) {
			user.Groups = append(user.Groups, allAuthenticated)
		}
	} else {
		klog.FromContext(ctx).V(2).Info("The API server does not accept a token", "source", from, "audience", shown.audience, "audiences", status.Audiences, "err", status.Error)
	}
	a.decided.Add(shown, user, decisionTTL)
	return user, nil
}

// allows returns whether the user has the right. It blocks for requests.
func (a *access) allows(ctx context.Context, user *authenticationv1.UserInfo, asked right) (bool, error) {
	if known, ok := a.decided.Get(asked); ok {
		allowed, _ := known.(bool)
		return allowed, nil
	}
	spec := authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: map[string]authorizationv1.ExtraValue{},
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Verb: asked.verb, Path: asked.path},
	}
	for key, values := range user.Extra {
		spec.Extra[key] = authorizationv1.ExtraValue(values)
	}
	answer, err := review(ctx, a.api.SubjectAccessReviews, &authorizationv1.SubjectAccessReview{Spec: spec})
	if err != nil {
		return false, fmt.Errorf("review the rights of user %q: %w", user.Username, err)
	}
	a.decided.Add(asked, answer.Status.Allowed, decisionTTL)
	return answer.Status.Allowed, nil
}

// reviews is the client of a kind of reviews.
type reviews[R any] interface {
	Create(ctx context.Context, review R, options metav1.CreateOptions) (R, error)
}

// review has the API server answer, and asks again after errors that pass.
func review[R any](ctx context.Context, client reviews[R], asked R) (answer R, err error) {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	ended := wait.ExponentialBackoffWithContext(ctx, reviewBackoff, func(ctx context.Context) (bool, error) {
		answer, err = client.Create(ctx, asked, metav1.CreateOptions{})
		return !isTemporary(err), nil
	})
	return answer, cmp.Or(err, ended)
}

func isTemporary(err error) bool {
	_, later := apierrors.SuggestsClientDelay(err)
	return later || apierrors.IsInternalError(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err) ||
		utilnet.IsConnectionReset(err) || utilnet.IsHTTP2ConnectionLost(err)
}
