// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 holds Berth's API objects, group berth.dev.
// An [IPPool] says which addresses exist and on which nodes they are routable. A
// [FloatingIP] is one address in use. The object is named by the address, so the
// API server refuses a second object for it, and no address has two holders.
// Kubernetes records Service addresses the same way (networking.k8s.io/v1
// IPAddress, KEP-1880). An [IPClaim] is a set of addresses that several workloads
// share.
//
// The CustomResourceDefinitions in manifests/crd are generated from this
// package; `make generate` writes them.
//
// +kubebuilder:object:generate=true
// +groupName=berth.dev
package v1alpha1
