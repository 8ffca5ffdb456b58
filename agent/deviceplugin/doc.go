// SPDX-License-Identifier: Apache-2.0

// Package deviceplugin makes the kubelet count virtual functions of network cards, as devices of
// the extended resource berth.dev/vf: so kube-scheduler, quotas and autoscalers count them. It owns
// a socket in the kubelet's folder. It never gives a container a function: package sriov chooses
// the function at ADD, and need not choose the device that the kubelet allocated. Numbers agree,
// names do not.
//
// A function that no container could have is unhealthy. So is a function of a container whose pod
// did not request it: the kubelet would count it as free.
//
// The protocol is gRPC with four small messages. The agent speaks it by net/http (grpc.go,
// messages.go): grpc's module would cost every node 7 MiB of memory. The tests have grpc on the
// kubelet's side.
//
// # Caveats
//
// The kubelet counts an unhealthy device in the node's capacity, but not as allocatable. When the
// plugin ends, nothing is allocatable until it is back; running pods are not touched.
package deviceplugin
