// SPDX-License-Identifier: Apache-2.0

// Package monitoring serves a program's health and metrics over HTTPS. Health needs no
// credentials, because the kubelet's probes have none. Metrics are for clients that the
// API server allows to get the non-resource URL /metrics.
//
// It authenticates bearer tokens with TokenReviews and authorizes with
// SubjectAccessReviews, with the delegating authenticator and authorizer of
// k8s.io/apiserver, like kube-scheduler's secure port. It accepts no client
// certificates: for these it would have to read a ConfigMap in kube-system.
//
// It never asks the API server about a request without a token, nor about health: a
// program is healthy even if the API server does not answer.
package monitoring
