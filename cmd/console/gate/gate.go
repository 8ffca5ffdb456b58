// SPDX-License-Identifier: Apache-2.0

// Package gate lets requests in to a console in the cluster. The API server decides who is asking
// (TokenReview) and what they may see (SubjectAccessReview): who may list FloatingIPs sees
// everything, others the rows of the namespaces where they may list pods. There are no passwords
// and no users of our own. The gate only asks about rights; a request that writes, or has programs
// of Berth's asked, gets a writer with the user's token.
package gate

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/cmd/kubectl-berth/console/access"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/page"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/register"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/serve"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

const (
	// How long answers of the API server are kept: what is withdrawn is gone after that.
	tokenTTL, rightTTL = 10 * time.Second, 30 * time.Second
	reviewTimeout      = 10 * time.Second
	// streamTTL is how long a stream of events lasts. A browser opens a new one, if its user still
	// may.
	streamTTL = 10 * time.Minute
	// parallel is how many namespaces are asked about at once.
	parallel = 16
)

// backoff is the pause after a temporary failure of the API server.
var backoff = wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 3}

// Gate is the gate of a console. Safe for concurrent use.
type Gate struct {
	authenticator authenticator.Request
	authorizer    authorizer.Authorizer
	register      *register.Register
	writer        func(token string) (*access.Writer, error)
	// lists is the folder of lists; empty: there are none. See [Gate.list].
	lists string
}

// New returns a gate that asks the API server of a client, and reads lists from a folder; empty:
// there are none. Requests write with the writer of their token; nil: they do not write.
func New(kube kubernetes.Interface, of *register.Register, lists string, writer func(token string) (*access.Writer, error)) (*Gate, error) {
	g := &Gate{register: of, lists: lists, writer: writer}
	var err error
	g.authenticator, _, err = authenticatorfactory.DelegatingAuthenticatorConfig{
		TokenAccessReviewClient: kube.AuthenticationV1(), TokenAccessReviewTimeout: reviewTimeout, WebhookRetryBackoff: &backoff, CacheTTL: tokenTTL,
	}.New()
	if err != nil {
		return nil, fmt.Errorf("create the authenticator: %w", err)
	}
	g.authorizer, err = authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: kube.AuthorizationV1(), AllowCacheTTL: rightTTL, DenyCacheTTL: rightTTL, WebhookRetryBackoff: &backoff,
	}.New()
	if err != nil {
		return nil, fmt.Errorf("create the authorizer: %w", err)
	}
	return g, nil
}

// cookie has the token that a user gave to a browser. Browsers send it to this host only, by HTTPS
// only, and to no page that another site began (RFC 6265bis, section 4.1.3).
const cookie = "__Host-berth-console"

// mostToken is the length of a token that browsers keep: of a cookie's 4096 bytes, name and
// attributes take some.
const mostToken = 3900

// LogOut is the path to which a browser posts that its user goes.
const LogOut = "/logout"

// Guard lets requests in to a handler. It is to be behind [serve.Secure].
func (g *Gate) Guard(next http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET "+page.StaticPrefix, page.Static())
	mux.HandleFunc("GET /login", func(w http.ResponseWriter, _ *http.Request) { login(w, http.StatusOK, "") })
	mux.HandleFunc("POST /login", g.logIn)
	mux.HandleFunc("POST "+LogOut, logOut)
	if g.lists != "" {
		mux.HandleFunc("GET /lists/{list}", g.list(next))
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		ctx := r.Context()
		who, token, err := g.userOf(r)
		switch {
		case isAway(err):
			klog.FromContext(ctx).Error(err, "Failed to authenticate a client", "client", r.RemoteAddr)
			away(w, r)
			return
		case err != nil || who == nil:
			klog.FromContext(ctx).V(4).Info("Did not authenticate a client", "client", r.RemoteAddr, "err", err)
			unknown(w, r)
			return
		}
		scope, err := g.scopeOf(ctx, who)
		switch {
		case err != nil:
			klog.FromContext(ctx).Error(err, "Failed to authorize a request", "user", who.GetName())
			away(w, r)
			return
		case scope.Empty():
			poor(w, r, who.GetName())
			return
		}
		ctx = access.With(ctx, scope)
		if g.writer != nil && r.Method != http.MethodGet && r.Method != http.MethodHead {
			writer, err := g.writer(token)
			if err != nil {
				klog.FromContext(ctx).Error(err, "Failed to make the client of a user", "user", who.GetName())
				serve.Refuse(w, r, http.StatusInternalServerError, "the console cannot write for you: see its log")
				return
			}
			ctx = access.WithWriter(ctx, writer)
		}
		ctx, cancel := context.WithTimeout(ctx, streamTTL)
		defer cancel()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
	return mux
}

// userOf returns the user of a request's token, of its header or else its cookie, and the token;
// nil if it has none that the API server accepts.
func (g *Gate) userOf(r *http.Request) (who user.Info, token string, err error) {
	if given, err := r.Cookie(cookie); err == nil && r.Header.Get("Authorization") == "" {
		r.Header.Set("Authorization", "Bearer "+given.Value)
	}
	// The authenticator takes the header away, and also one that it does not accept should go no
	// further.
	header := strings.Fields(r.Header.Get("Authorization"))
	answer, ok, err := g.authenticator.AuthenticateRequest(r)
	r.Header.Del("Authorization")
	if err != nil || !ok {
		return nil, "", err
	}
	return answer.User, header[1], nil // Bearer TOKEN: the authenticator knows no other
}

// scopeOf returns the part of the cluster that a user may see.
func (g *Gate) scopeOf(ctx context.Context, who user.Info) (register.Scope, error) {
	may, err := g.may(ctx, who, v1alpha1.GroupName, "floatingips", "")
	if err != nil || may {
		return all(may), err
	}
	namespaces := g.register.Namespaces()
	if may, err = g.may(ctx, who, "", "pods", ""); err != nil || may {
		return register.Of(namespaces...), err
	}
	var mu sync.Mutex
	var seen []string
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, namespace := range namespaces {
		group.Go(func() error {
			may, err := g.may(ctx, who, "", "pods", namespace)
			if may {
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, namespace)
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return register.Scope{}, err
	}
	return register.Of(seen...), nil
}

// all is the scope of somebody who may list FloatingIPs, and an empty one otherwise.
func all(may bool) register.Scope {
	if may {
		return register.Everything
	}
	return register.Scope{}
}

// isAway says whether an error is that the API server did not decide, and not that it decided
// against a token.
func isAway(err error) bool {
	var several utilerrors.Aggregate
	if errors.As(err, &several) {
		return slices.ContainsFunc(several.Errors(), isAway)
	}
	var status apierrors.APIStatus
	var unsent *url.Error
	return errors.As(err, &status) || errors.As(err, &unsent) || errors.Is(err, context.DeadlineExceeded)
}

// away answers while the API server cannot be asked. A browser keeps its cookie.
func away(w http.ResponseWriter, r *http.Request) {
	serve.Refuse(w, r, http.StatusServiceUnavailable, "the API server cannot be asked now who you are and what you may see: try again soon")
}

// poor answers a user who may see nothing.
func poor(w http.ResponseWriter, r *http.Request, name string) {
	detail := fmt.Sprintf("user %q may list neither FloatingIPs nor the pods of a namespace that has any", name)
	if serve.ForPrograms(r) {
		serve.Refuse(w, r, http.StatusForbidden, detail)
		return
	}
	leave(w, r)
	login(w, http.StatusForbidden, "There is nothing here for you: "+detail+".")
}

// leave has a page that is open, and asks for the part that changed, go to the login page.
func leave(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("HX-Request") == "true" {
		w.Header().Set("HX-Redirect", "/login")
	}
}

// may returns whether a user may list objects of a namespace; of the whole cluster if it is empty.
func (g *Gate) may(ctx context.Context, who user.Info, group, resource, namespace string) (bool, error) {
	decision, _, err := g.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: who, Verb: "list", APIGroup: group, APIVersion: "*", Resource: resource, Namespace: namespace, ResourceRequest: true,
	})
	if err != nil {
		return false, fmt.Errorf("review whether user %q may list %s in %q: %w", who.GetName(), resource, namespace, err)
	}
	return decision == authorizer.DecisionAllow, nil
}

// unknown answers a request without a token that the API server accepts.
func unknown(w http.ResponseWriter, r *http.Request) {
	const detail = "send a bearer token that the API server of this cluster accepts; one that expired has to be replaced"
	if serve.ForPrograms(r) {
		w.Header().Set("WWW-Authenticate", "Bearer")
		serve.Refuse(w, r, http.StatusUnauthorized, detail)
		return
	}
	leave(w, r)
	if _, err := r.Cookie(cookie); err == nil {
		forget(w)
		login(w, http.StatusUnauthorized, "Your token is not accepted any more: it expired, or its account is gone.")
		return
	}
	login(w, http.StatusUnauthorized, "")
}

func (g *Gate) logIn(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 64<<10)
	token := strings.TrimSpace(r.PostFormValue("token"))
	if len(token) > mostToken {
		login(w, http.StatusBadRequest, fmt.Sprintf("The token is %d bytes long, and browsers keep at most %d: have a proxy send it as Authorization: Bearer.", len(token), mostToken))
		return
	}
	r.Header.Set("Authorization", "Bearer "+token)
	who, _, err := g.userOf(r)
	switch {
	case isAway(err):
		klog.FromContext(r.Context()).Error(err, "Failed to authenticate a client", "client", r.RemoteAddr)
		login(w, http.StatusServiceUnavailable, "The API server cannot be asked now who you are: try again soon.")
		return
	case token == "" || err != nil || who == nil:
		login(w, http.StatusUnauthorized, "The API server does not accept this token.")
		return
	}
	http.SetCookie(w, &http.Cookie{Name: cookie, Value: token, Path: "/", Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode})
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

func logOut(w http.ResponseWriter, r *http.Request) {
	forget(w)
	http.Redirect(w, r, "/login", http.StatusSeeOther)
}

func forget(w http.ResponseWriter) {
	http.SetCookie(w, &http.Cookie{Name: cookie, Path: "/", MaxAge: -1, Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode})
}
