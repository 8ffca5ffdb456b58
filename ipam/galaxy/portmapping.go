// SPDX-License-Identifier: Apache-2.0

package galaxy

// PortMapping is a host port in the annotation [AnnotationPortMapping].
type PortMapping struct {
	HostPort      int32  `json:"hostPort"`
	ContainerPort int32  `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP,omitempty"`
	PodName       string `json:"podName"`
	PodIP         string `json:"podIP"`
}
