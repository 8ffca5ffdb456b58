// SPDX-License-Identifier: Apache-2.0

// Package e2e tests Berth as its users get it, on a real cluster: programs in
// their images, manifests/ applied by kubectl, kubelet and containerd calling
// CNI, packets on wires. It needs root.
//
// The test binary starts itself once more: the parent makes the cluster and
// takes it down however the child, which runs the tests, has ended. Each test has
// a namespace and a pool of its own and must leave nodes and programs as they
// were. After each the API, the agents' files and the kernels of all nodes must
// agree. Tests that need the cluster for themselves run first, one after the
// other; then the others run side by side, of which one at a time breaks
// something.
//
//	go test -short ./e2e
//	go test -timeout 90m ./e2e
//	go test -run TestPartition ./e2e
//
// When a test fails, the state of the cluster goes to a file in ARTIFACTS, or in
// the temporary folder; the test says where. With BERTH_E2E_LAB=NAME the tests
// use a lab that is up and has Berth on it, and leave it up.
package e2e
