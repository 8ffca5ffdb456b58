// SPDX-License-Identifier: Apache-2.0

package services

import (
	"net/http"
	"strings"

	"github.com/berth-dev/berth/test/simulation/proxy"
)

// isAssigning matches a write of a NodeAssignment, which each node has.
func isAssigning(r *http.Request) bool {
	return r.Method == http.MethodPut && strings.HasPrefix(r.URL.Path, "/apis/berth.dev/v1alpha1/nodeassignments/")
}

var points = []proxy.Point{proxy.BeforeRequest, proxy.BeforeAnswer}

// steps are the side effects of the controller, in their order.
var steps = []struct {
	name  string
	match func(*http.Request) bool
	// takes: the Service is deleted, and not created.
	takes bool
}{
	{"give: record", proxy.IsClaim, false},
	{"give: assignment", isAssigning, false},
	{"give: status", func(r *http.Request) bool {
		return r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/services/front/status")
	}, false},
	{"take: assignment", isAssigning, true},
	{"take: holder", proxy.IsIPPatch, true},
	{"take: record", proxy.IsIPDelete, true},
}
