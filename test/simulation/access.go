// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/simulation/proxy"
)

// Allowed asks the API server's authorizer whether a program of Berth's may do something.
func (w *World) Allowed(account, access string) bool {
	w.T.Helper()
	identity := proxy.ServiceAccount(w.System, account)
	return w.allowed(identity.UserName, identity.Groups, access)
}

// UserAllowed asks it about a user.
func (w *World) UserAllowed(user, access string) bool {
	w.T.Helper()
	return w.allowed(user, []string{"system:authenticated"}, access)
}

func (w *World) allowed(user string, groups []string, access string) bool {
	w.T.Helper()
	words := strings.Fields(access)
	group, resource, _ := strings.Cut(words[1], "/")
	resource, subresource, _ := strings.Cut(resource, "/")
	attributes := &authorizationv1.ResourceAttributes{Verb: words[0], Group: group, Resource: resource, Subresource: subresource}
	if len(words) > 2 {
		attributes.Namespace, attributes.Name, _ = strings.Cut(words[2], "/")
	}
	review, err := w.Kube.AuthorizationV1().SubjectAccessReviews().Create(w.Ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user, Groups: groups, ResourceAttributes: attributes,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		w.T.Fatal(err)
	}
	return review.Status.Allowed
}

// Grant binds the ClusterRoles of an example to a user.
func (w *World) Grant(example, user string) {
	w.T.Helper()
	for _, role := range w.ExampleRoles(example) {
		w.Bind(role, user)
	}
}

// ExampleRoles makes the ClusterRoles of an example and returns their names.
func (w *World) ExampleRoles(example string) (names []string) {
	w.T.Helper()
	objects, err := deploy.Manifest("examples/" + example)
	if err != nil {
		w.T.Fatal(err)
	}
	for _, object := range objects {
		role := &rbacv1.ClusterRole{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, role); err != nil {
			w.T.Fatal(err)
		}
		// Some are installed with Berth.
		if _, err := w.Kube.RbacV1().ClusterRoles().Create(w.Ctx, role, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			w.T.Fatal(err)
		}
		names = append(names, role.Name)
	}
	return names
}

// Bind gives a user a ClusterRole in the whole cluster.
func (w *World) Bind(role, user string) {
	w.T.Helper()
	if _, err := w.Kube.RbacV1().ClusterRoleBindings().Create(w.Ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role + "-" + user},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}, metav1.CreateOptions{}); err != nil {
		w.T.Fatal(err)
	}
}
