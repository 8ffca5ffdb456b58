// SPDX-License-Identifier: Apache-2.0

// Package monitoring serves a program's health and metrics over HTTPS. Health needs no
// credentials, because the kubelet's probes have none. Metrics are for clients that the
// API server allows to get the non-resource URL /metrics. As everybody may ask for readiness, it
// is found out once in two seconds at most, and the reason why it lacks stands in the log only.
//
// Further resources of a program, such as an agent's answers about its node, are guarded alike, by
// tokens for an audience of their own: a token that opens the API server is not for other programs.
//
// It authenticates bearer tokens with TokenReviews and authorizes with
// SubjectAccessReviews, like kube-scheduler's secure port, and caches both as long. The
// delegating authenticator of k8s.io/apiserver is not used: it brings an API server's
// libraries into each process, 30 MB of program. It accepts no client certificates: for
// these it would have to read a ConfigMap in kube-system.
//
// Whoever reaches the port can make tokens up, and open connections: both are limited for each
// source, and shared among the sources, so that the others are served. The limits for known tokens
// and sources are their own.
//
// It never asks the API server about a request without a token, nor about health: a
// program is healthy even if the API server does not answer.
package monitoring
