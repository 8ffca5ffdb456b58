// SPDX-License-Identifier: Apache-2.0

// Package ipvs tests pods with floating IPs and host ports beside kube-proxy in mode ipvs:
// kube-proxy's own code, in a namespace that is a node. Package e2e tests the other modes on
// the lab, whose kernel may lack IPVS; these tests run in the machine of package machine.
package ipvs
