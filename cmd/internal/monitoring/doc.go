// SPDX-License-Identifier: Apache-2.0

// Package monitoring serves over HTTPS what is asked of a running program: its
// health, to everybody, since the kubelet's probes have no credentials; and its
// metrics, to those whom the API server lets get the non-resource URL /metrics.
//
// It authenticates bearer tokens with TokenReviews and authorizes with
// SubjectAccessReviews, by the delegating authenticator and authorizer of
// k8s.io/apiserver, as kube-scheduler's secure port does: the library that all kube
// components trust for it. It takes no client certificates: for these it would have to
// read a ConfigMap of kube-system.
//
// It never asks the API server about a request without a token, nor about
// health: a program is healthy also while the API server does not answer.
package monitoring
