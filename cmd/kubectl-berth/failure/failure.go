// SPDX-License-Identifier: Apache-2.0

// Package failure has the meaning of the API server's errors for the user: no cluster, no rights,
// no CRDs, no such object.
package failure

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// ViewerRole is the ClusterRole that allows every reading command. It is installed with Berth.
const ViewerRole = "berth-viewer"

// Explain returns the text of an error for the user. Where a user meets the error first
// (no cluster, no rights, no CRDs), the text advises the user in place of the library's
// words, after the words that the program put before them.
func Explain(err error) string {
	text := err.Error()
	inner, advice := advise(err)
	if advice == "" || strings.Contains(text, "\n") {
		return text
	}
	before, found := strings.CutSuffix(text, inner)
	if !found {
		return text
	}
	return before + advice
}

// advise returns the text of the innermost error that it knows, and the advice instead.
func advise(err error) (inner, advice string) {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return status.(error).Error(), ofStatus(status)
	}
	var request *url.Error
	if errors.As(err, &request) {
		return request.Error(), ofConnection(request)
	}
	return "", ""
}

func lastOf(err error) string {
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		err = inner
	}
	return err.Error()
}

// noCluster is the server that client-go asks if the user configured no cluster.
const noCluster = "http://localhost:8080"

func ofConnection(request *url.Error) string {
	server := request.URL
	if parsed, err := url.Parse(request.URL); err == nil {
		server = parsed.Scheme + "://" + parsed.Host
	}
	var (
		unknown  x509.UnknownAuthorityError
		hostname x509.HostnameError
		lookup   *net.DNSError
		syscall  *os.SyscallError
	)
	var why string
	switch {
	case server == noCluster:
		return "no cluster is configured: set KUBECONFIG, or name a file with --kubeconfig"
	case errors.Is(request, context.Canceled):
		return "interrupted"
	case errors.As(request, &unknown), errors.As(request, &hostname):
		return fmt.Sprintf("the certificate of the API server %s is not the one that the kubeconfig trusts: check the cluster's certificate-authority and server there, and --context", server)
	case errors.As(request, &lookup):
		why = fmt.Sprintf("there is no host %q", lookup.Name)
	case request.Timeout():
		why = "it does not answer in time"
	case errors.As(request, &syscall):
		why = syscall.Err.Error()
	default:
		why = lastOf(request)
	}
	return fmt.Sprintf("cannot reach the API server %s (%s): check --context or --kubeconfig (kubectl config current-context says which cluster is chosen), and that this machine has a way there", server, why)
}

func ofStatus(of apierrors.APIStatus) string {
	status := of.Status()
	err := &apierrors.StatusError{ErrStatus: status}
	switch {
	case apierrors.IsForbidden(err):
		return Forbidden(err)
	case apierrors.IsUnauthorized(err):
		return "the API server does not accept the credentials: log in again, or choose others with --context, --user or --token"
	case isNotServed(&status) && status.Details.Group == v1alpha1.GroupName:
		return fmt.Sprintf("the cluster does not serve %s.%s: Berth is not installed there (or its CRDs were applied a moment ago); check --context, or see docs/how-to/installation.md", status.Details.Kind, status.Details.Group)
	}
	return ""
}

// isNotServed says whether there is no such resource, as opposed to no such object.
func isNotServed(status *metav1.Status) bool {
	return status.Reason == metav1.StatusReasonNotFound && status.Details != nil &&
		slices.ContainsFunc(status.Details.Causes, func(cause metav1.StatusCause) bool { return cause.Type == metav1.CauseTypeUnexpectedServerResponse })
}

// IsNoSuch says whether there is no such object; it is false if the kind is not served.
func IsNoSuch(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	known := status.Status()
	return known.Reason == metav1.StatusReasonNotFound && !isNotServed(&known)
}

var refused = regexp.MustCompile(`User "(.*)" cannot (\S+) resource "([^"]*)" in API group "([^"]*)"(?: (?:at the cluster scope|in the namespace "([^"]*)"))?`)

// Forbidden says which right is missing and how to ask for it; empty: err is of something else.
func Forbidden(err error) string {
	if !apierrors.IsForbidden(err) {
		return ""
	}
	match := refused.FindStringSubmatch(err.Error())
	if match == nil {
		return "" // an admission policy's answer has its own text
	}
	user, verb, resource, group, namespace := match[1], match[2], match[3], match[4], match[5]
	what := resource
	if group != "" {
		what += "." + group
	}
	where, scope := "", ""
	if namespace != "" {
		where, scope = fmt.Sprintf(" in namespace %s", namespace), " -n "+namespace
	}
	text := fmt.Sprintf("user %q may not %s %s%s", user, verb, what, where)
	subject := "--user=" + user
	if account, found := strings.CutPrefix(user, "system:serviceaccount:"); found {
		subject = "--serviceaccount=" + account
	}
	if reads := []string{"get", "list", "watch"}; slices.Contains(reads, verb) && group == v1alpha1.GroupName && namespace == "" {
		return fmt.Sprintf("%s: ask an administrator for the ClusterRole %s (if there is none, the chart's roles.enabled is false): kubectl create clusterrolebinding %s --clusterrole=%s %s", text, ViewerRole, nameOf(user), ViewerRole, subject)
	}
	return fmt.Sprintf("%s: ask an administrator for this right; kubectl auth can-i %s %s%s tells when you have it", text, verb, what, scope)
}

var notInNames = regexp.MustCompile(`[^a-z0-9.-]+`)

func nameOf(user string) string {
	return ViewerRole + "-" + strings.Trim(notInNames.ReplaceAllString(strings.ToLower(user), "-"), "-.")
}
