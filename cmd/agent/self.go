// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/base64"
	"encoding/json"
	"strings"

	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/agent/answering"
)

// self returns this node. Its UID is a claim of the agent's own token, since agents have no right to get Nodes; it is empty where
// the agent has another kind of credentials.
func self(o *Options, config *rest.Config) answering.Node {
	return answering.Node{Name: o.NodeName, UID: nodeUID(config.BearerToken, o.NodeName)}
}

// nodeUID returns the UID of the node for whose pod a token of a ServiceAccount was made (KEP-4193), empty where it says none. The signature
// is not verified: it is the agent's own token.
func nodeUID(token, node string) string {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return ""
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return ""
	}
	var claims struct {
		Kubernetes struct {
			Node struct {
				Name string `json:"name"`
				UID  string `json:"uid"`
			} `json:"node"`
		} `json:"kubernetes.io"`
	}
	if err := json.Unmarshal(payload, &claims); err != nil || claims.Kubernetes.Node.Name != node {
		return ""
	}
	return claims.Kubernetes.Node.UID
}
