// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/simulation/proxy"
)

// Allowed asks the API server's authorizer.
func (w *World) Allowed(account, access string) bool {
	w.T.Helper()
	words := strings.Fields(access)
	group, resource, _ := strings.Cut(words[1], "/")
	resource, subresource, _ := strings.Cut(resource, "/")
	attributes := &authorizationv1.ResourceAttributes{Verb: words[0], Group: group, Resource: resource, Subresource: subresource}
	if len(words) > 2 {
		attributes.Namespace, attributes.Name, _ = strings.Cut(words[2], "/")
	}
	identity := proxy.ServiceAccount(w.System, account)
	review, err := w.Kube.AuthorizationV1().SubjectAccessReviews().Create(w.Ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: identity.UserName, Groups: identity.Groups, ResourceAttributes: attributes,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		w.T.Fatal(err)
	}
	return review.Status.Allowed
}
