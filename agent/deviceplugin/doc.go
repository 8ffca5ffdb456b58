// SPDX-License-Identifier: Apache-2.0

// Package deviceplugin has the kubelet count virtual functions of network cards, as devices of the
// extended resource berth.dev/vf: so kube-scheduler, quotas and autoscalers count them. It owns a
// socket in the kubelet's folder, and never gives a container a function: package sriov chooses one
// at ADD, and need not choose the device that the kubelet allocated. Numbers agree, names do not.
//
// A function that no container could have is unhealthy, and so is one that a container has whose
// pod did not request it: the kubelet would count it as free.
//
// The protocol is gRPC with four small messages. The agent speaks it by net/http (grpc.go,
// messages.go): grpc's module would cost every node 7 MiB of memory. The tests have grpc on the
// kubelet's side.
//
// # Caveats
//
// The kubelet counts an unhealthy device in the node's capacity, not in what is allocatable. When
// the plugin ends, nothing is allocatable until it is back; pods that run are not touched.
package deviceplugin
