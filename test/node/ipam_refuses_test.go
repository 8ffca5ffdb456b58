// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/cni/api"
)

func codeOf(err error) uint {
	var e *types.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

// TestIPAMRefuses checks berth-ipam's errors where it gives no address.
func TestIPAMRefuses(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	n := net.newNode(t, "ipam-refuses", "10.0.60.11")
	n.bridged("10.0.60.11")
	plain := n.direct("bridge", "")
	ordinary := newContainer(t, "ordinary", createPod(t, n.name, "ordinary", ""))
	mine := createPod(t, n.name, "mine", "10.0.70.5")
	bind(t, "10.0.70.5", mine)
	thief := newContainer(t, "thief", createPod(t, n.name, "thief", "10.0.70.5"))
	forged := newContainer(t, "forged", &corev1.Pod{ObjectMeta: mine.ObjectMeta})
	forged.pod.UID = "0b8c7b4e-0000-4000-8000-000000000000"
	owner := newContainer(t, "owner", mine.DeepCopy())

	for name, c := range map[string]struct {
		container *container
		program   string
		command   string
		values    map[string]any
		code      uint
		text      string
	}{
		"no floating IP":              {ordinary, "berth-ipam", "ADD", nil, api.CodeNoFloatingIP, "ipam.delegate"},
		"another pod's address":       {thief, "berth-ipam", "ADD", nil, api.CodePodNotPlaced, "pod mine with UID"},
		"another UID":                 {forged, "berth-ipam", "ADD", nil, types.ErrTryAgainLater, "was replaced"},
		"the router's address":        {owner, "berth-ipam", "ADD", map[string]any{"isGateway": true}, types.ErrInvalidNetworkConfig, "ipam.gateways"},
		"masquerade":                  {owner, "berth-ipam", "ADD", map[string]any{"ipMasq": true}, types.ErrInvalidNetworkConfig, "ipMasq"},
		"unknown key":                 {owner, "berth-ipam", "ADD", map[string]any{"ipam": map[string]any{"type": "berth-ipam", "sokcet": "/x"}}, types.ErrInvalidNetworkConfig, "sokcet"},
		"no agent":                    {owner, "berth-ipam", "ADD", map[string]any{"ipam": map[string]any{"type": "berth-ipam", "socket": "/nowhere"}}, types.ErrTryAgainLater, "does not answer"},
		"CHECK of what was not given": {owner, "berth-ipam", "CHECK", map[string]any{"prevResult": map[string]any{"cniVersion": "1.1.0"}}, types.ErrUnknownContainer, "no floating IP"},
		"GC without a list":           {nil, "berth-ipam", "GC", nil, types.ErrInvalidEnvironmentVariables, "valid attachments"},
		"STATUS without an agent":     {nil, "berth-ipam", "STATUS", map[string]any{"ipam": map[string]any{"type": "berth-ipam", "socket": "/nowhere"}}, api.CodeNotAvailable, "does not answer"},
	} {
		path := ""
		if c.container != nil {
			path = c.container.Path()
		}
		out, err := plain.run(c.program, c.command, c.container, path, c.values)
		if codeOf(err) != c.code || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v %s, want code %d with %q", name, err, out, c.code, c.text)
		}
	}
	if left := n.inspection().Containers; len(left) > 0 {
		t.Errorf("records are left: %+v", left)
	}

	// With a delegate the ordinary pod has an address of its own, and the other its floating IP.
	both := n.direct("bridge", fmt.Sprintf(`,"delegate":{"type":"host-local","subnet":"10.9.0.0/24","dataDir":%q}`, n.dir+"/leases"))
	for c, want := range map[*container]string{ordinary: "10.9.0.2/24", owner: "10.0.70.5/24"} {
		if r := both.mustAdd(c); len(r.IPs) != 1 || r.IPs[0].Address.String() != want {
			t.Errorf("pod %s has %v, want %s", c.pod.Name, r.IPs, want)
		}
	}
	ping(t, net.client, "10.0.70.5")
	for _, c := range []*container{ordinary, owner} {
		for range 2 {
			both.mustDel(c)
		}
	}
	if leases, _ := filepath.Glob(n.dir + "/leases/direct/10.*"); len(leases) > 0 {
		t.Errorf("leases left: %q", leases)
	}
}
