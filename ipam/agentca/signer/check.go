// SPDX-License-Identifier: Apache-2.0

package signer

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/agentca"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// The API server takes these from a token of a ServiceAccount that is bound to a pod (KEP-4193),
// and no client can set them without the right to impersonate.
const (
	extraNodeName = "authentication.kubernetes.io/node-name"
	extraNodeUID  = "authentication.kubernetes.io/node-uid"
)

type agent struct {
	name, uid string
	key       ed25519.PublicKey
}

// refusal says why a request is not signed. It is final: another try has the same result.
type refusal struct{ text string }

func (r *refusal) Error() string { return r.text }

func refusef(format string, args ...any) error { return &refusal{fmt.Sprintf(format, args...)} }

// check returns the agent that a request is for, or a refusal.
func (s *Signer) check(ctx context.Context, request *certificatesv1.CertificateSigningRequest) (*agent, error) {
	asked, err := read(request)
	if err != nil {
		return nil, err
	}
	// A request outlives its node.
	node, err := s.kube.CoreV1().Nodes().Get(ctx, asked.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) || err == nil && string(node.UID) != asked.uid:
		return nil, refusef("there is no node %s with UID %s any more", asked.name, asked.uid)
	case err != nil:
		return nil, fmt.Errorf("get node %s: %w", asked.name, err)
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{Group: v1alpha1.GroupName, Resource: "agents", Verb: "act"},
		User:               request.Spec.Username, Groups: request.Spec.Groups, UID: request.Spec.UID,
		Extra: map[string]authorizationv1.ExtraValue{},
	}}
	for key, values := range request.Spec.Extra {
		review.Spec.Extra[key] = authorizationv1.ExtraValue(values)
	}
	review, err = s.kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	switch {
	case err != nil:
		return nil, fmt.Errorf("ask for the rights of %s: %w", request.Spec.Username, err)
	case !review.Status.Allowed:
		return nil, refusef("%s is no agent: it has no right to act on agents.%s", request.Spec.Username, v1alpha1.GroupName)
	}
	return asked, nil
}

// read returns the agent that a request names, or a refusal. It does no I/O.
func read(request *certificatesv1.CertificateSigningRequest) (*agent, error) {
	names, uids := request.Spec.Extra[extraNodeName], request.Spec.Extra[extraNodeUID]
	if len(names) != 1 || len(uids) != 1 || names[0] == "" || uids[0] == "" {
		return nil, refusef("the token of %s names no node: it is not bound to a pod", request.Spec.Username)
	}
	asked := &agent{name: names[0], uid: uids[0]}
	if !slices.Equal(request.Spec.Usages, agentca.Usages()) {
		return nil, refusef("the usages are %q, and must be %q", request.Spec.Usages, agentca.Usages())
	}
	block, _ := pem.Decode(request.Spec.Request)
	if block == nil {
		return nil, refusef("the request is no PEM")
	}
	parsed, err := x509.ParseCertificateRequest(block.Bytes)
	if err == nil {
		err = parsed.CheckSignature()
	}
	if err != nil {
		return nil, refusef("the request cannot be read: %v", err)
	}
	subject, err := asn1.Marshal(agentca.Subject(asked.name, asked.uid).ToRDNSequence())
	if err != nil {
		return nil, refusef("no subject can name node %s with UID %s: %v", asked.name, asked.uid, err)
	}
	if !bytes.Equal(parsed.RawSubject, subject) {
		return nil, refusef("the subject is %q, and the token names node %s with UID %s", parsed.Subject, asked.name, asked.uid)
	}
	key, ok := parsed.PublicKey.(ed25519.PublicKey)
	if !ok {
		return nil, refusef("the key is a %T, and must be Ed25519", parsed.PublicKey)
	}
	asked.key = key
	return asked, nil
}
