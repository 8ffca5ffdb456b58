// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// The API server takes the example of an audit policy and logs each request that a rule of it
// names, at the rule's level. It logs no token and no key.
func TestAuditPolicy(t *testing.T) {
	t.Parallel()
	root, err := deploy.Root()
	if err != nil {
		t.Fatal(err)
	}
	file, log := filepath.Join(root, "manifests", "examples", "audit-policy.yaml"), filepath.Join(t.TempDir(), "audit.log")
	w := simulation.NewWith(t, simulation.Options{ControlPlaneOptions: lab.ControlPlaneOptions{
		APIServerFlags: []string{"--audit-policy-file=" + file, "--audit-log-path=" + log},
	}})
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var policy auditv1.Policy
	if err := yaml.UnmarshalStrict(text, &policy); err != nil {
		t.Fatal(err)
	}

	issued := secrets(w)
	// Of another namespace, and no writes: no rule names them.
	for _, path := range []string{"/api/v1/namespaces/default/secrets", "/api/v1/namespaces/" + w.System + "/configmaps", "/apis/berth.dev/v1alpha1/floatingips"} {
		if err := w.Kube.RESTClient().Get().AbsPath(path).Do(w.Ctx).Error(); err != nil {
			t.Fatal(err)
		}
	}
	var want []logged
	for _, rule := range policy.Rules {
		for _, r := range named(w, rule) {
			for _, verb := range r.verbs {
				// Nobody has it, and nothing is written: the API server logs the request all the same.
				r.request(w, verb)
				want = append(want, logged{r.group, r.resource, verb, r.namespace, rule.Level})
			}
		}
	}
	var found map[logged]bool
	w.Eventually("read the audit log", func() error {
		found, text = events(t, log)
		if missing := slices.DeleteFunc(slices.Clone(want), func(l logged) bool { return found[l] }); len(missing) > 0 {
			return fmt.Errorf("it has no %+v", missing)
		}
		return nil
	})
	for l := range found {
		// The API server's own requests, and those of the test's set-up, are of other namespaces.
		if !slices.ContainsFunc(want, func(o logged) bool { o.namespace = l.namespace; return o == l }) {
			t.Errorf("the log has %+v, which no rule names", l)
		}
	}
	for what, secret := range issued {
		if strings.Contains(string(text), secret) {
			t.Errorf("the log has the %s", what)
		}
	}
	if !strings.Contains(string(text), "authentication.kubernetes.io/issued-credential-id") {
		t.Error("the log has no ID of the token")
	}
}

// logged is what the audit log says of a request.
type logged struct {
	group, resource, verb, namespace string
	level                            auditv1.Level
}

// target is a resource that a rule names, with the rule's verbs that it has.
type target struct {
	group, version, resource, namespace string
	verbs                               []string
}

// named returns the resources that a rule names. The API server has each of them, and of each verb
// at least one.
func named(w *simulation.World, rule auditv1.PolicyRule) (all []target) {
	w.T.Helper()
	_, lists, err := w.Kube.Discovery().ServerGroupsAndResources()
	if err != nil {
		w.T.Fatal(err)
	}
	left := map[string]bool{}
	for _, verb := range rule.Verbs {
		left[verb] = true
	}
	for _, group := range rule.Resources {
		missing := slices.Clone(group.Resources)
		for _, list := range lists {
			version, err := schema.ParseGroupVersion(list.GroupVersion)
			if err != nil {
				w.T.Fatal(err)
			}
			for _, r := range list.APIResources {
				if version.Group != group.Group || len(group.Resources) > 0 && !slices.Contains(group.Resources, r.Name) {
					continue
				}
				missing = slices.DeleteFunc(missing, func(name string) bool { return name == r.Name })
				namespaces := []string{""}
				if r.Namespaced && len(rule.Namespaces) > 0 {
					namespaces = rule.Namespaces
				} else if r.Namespaced {
					namespaces = []string{"default"}
				}
				for _, namespace := range namespaces {
					one := target{group: version.Group, version: version.Version, resource: r.Name, namespace: namespace}
					for _, verb := range r.Verbs {
						if (len(rule.Verbs) == 0 || slices.Contains(rule.Verbs, verb)) && (namespace != "" || !r.Namespaced || verb == "list" || verb == "watch") {
							delete(left, verb)
							one.verbs = append(one.verbs, verb)
						}
					}
					all = append(all, one)
				}
			}
		}
		if len(missing) > 0 {
			w.T.Errorf("the API server has no %v of the group %q", missing, group.Group)
		}
	}
	if len(all) == 0 || len(left) > 0 {
		w.T.Errorf("a rule of %+v finds %d resources, and none with the verbs %v", rule.Resources, len(all), left)
	}
	return all
}

// request asks for a verb on an object that is not there, or on all.
func (r target) request(w *simulation.World, verb string) {
	w.T.Helper()
	method := map[string]string{
		"create": http.MethodPost, "update": http.MethodPut, "patch": http.MethodPatch, "delete": http.MethodDelete, "deletecollection": http.MethodDelete,
		"get": http.MethodGet, "list": http.MethodGet, "watch": http.MethodGet,
	}[verb]
	if method == "" {
		w.T.Fatalf("verb %q of %s", verb, r.resource)
	}
	name, sub, isSub := strings.Cut(r.resource, "/")
	path := []string{"/apis", r.group, r.version}
	if r.group == "" {
		path = []string{"/api", r.version}
	}
	if r.namespace != "" {
		path = append(path, "namespaces", r.namespace)
	}
	path = append(path, name)
	if isSub || slices.Contains([]string{"update", "patch", "delete", "get"}, verb) {
		path = append(path, "no-such-object", sub)
	}
	request := w.Kube.RESTClient().Verb(method).AbsPath(path...).SetHeader("Content-Type", "application/json")
	switch verb {
	case "watch":
		request.Param("watch", "true").Param("timeoutSeconds", "1")
	case "create", "update", "patch", "delete", "deletecollection":
		request.Param("dryRun", metav1.DryRunAll).Body([]byte("{}"))
		if verb == "patch" {
			request.SetHeader("Content-Type", "application/merge-patch+json")
		}
	}
	// Most are refused: there is no such object, or an empty one.
	if err := request.Do(w.Ctx).Error(); err != nil && apierrors.ReasonForError(err) == metav1.StatusReasonUnknown {
		w.T.Fatalf("%s %v: %v", verb, path, err)
	}
}

// secrets has the API server issue a token, and write a Secret and read it, alone and among all,
// and returns what must not be in a log.
func secrets(w *simulation.World) map[string]string {
	w.T.Helper()
	account := &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "asks"}}
	if _, err := w.Kube.CoreV1().ServiceAccounts(w.System).Create(w.Ctx, account, metav1.CreateOptions{}); err != nil {
		w.T.Fatal(err)
	}
	token, err := w.Kube.CoreV1().ServiceAccounts(w.System).CreateToken(w.Ctx, account.Name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		w.T.Fatal(err)
	}
	key := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "key"}, Data: map[string][]byte{"tls.key": []byte("a key that nobody may read")}}
	secrets := w.Kube.CoreV1().Secrets(w.System)
	written, err := secrets.Create(w.Ctx, key, metav1.CreateOptions{})
	if err == nil {
		_, err = secrets.Update(w.Ctx, written, metav1.UpdateOptions{})
	}
	if err == nil {
		_, err = secrets.Get(w.Ctx, key.Name, metav1.GetOptions{})
	}
	if err == nil {
		_, err = w.Kube.CoreV1().Secrets(metav1.NamespaceAll).List(w.Ctx, metav1.ListOptions{})
	}
	if err != nil {
		w.T.Fatal(err)
	}
	encoded, err := json.Marshal(key.Data["tls.key"])
	if err != nil {
		w.T.Fatal(err)
	}
	return map[string]string{"token": token.Status.Token, "key": strings.Trim(string(encoded), `"`)}
}

// events reads the log.
func events(t *testing.T, log string) (found map[logged]bool, text []byte) {
	t.Helper()
	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	found = map[logged]bool{}
	for line := range strings.Lines(string(text)) {
		if !strings.HasSuffix(line, "\n") {
			break // It is being written.
		}
		var event auditv1.Event
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			t.Fatal(err)
		}
		object := event.ObjectRef
		name := object.Resource
		if object.Subresource != "" {
			name += "/" + object.Subresource
		}
		found[logged{object.APIGroup, name, event.Verb, object.Namespace, event.Level}] = true
	}
	return found, text
}
