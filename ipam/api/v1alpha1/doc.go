// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 holds Berth's API objects, group berth.dev.
//
// An [IPPool] says which addresses exist and on which nodes they are
// routable. A [FloatingIP] is one address in use: the object is named by the
// address, so creating it is the claim and the API server is the lock that
// makes a duplicate impossible. Kubernetes records Service addresses the same
// way (networking.k8s.io/v1 IPAddress, KEP-1880).
//
// The CustomResourceDefinitions in manifests/crd are generated from this
// package; `make generate` writes them.
//
// +kubebuilder:object:generate=true
// +groupName=berth.dev
package v1alpha1
