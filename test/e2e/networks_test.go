// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/witness"
)

const networkStatus = "k8s.v1.cni.cncf.io/network-status"

// storageNet is a bridge of each node.
const storageNet = `{"cniVersion":"1.0.0","plugins":[{"type":"bridge","bridge":"storage0","ipam":{"type":"host-local","subnet":"10.9.0.0/24"}}]}`

func naming(networks string) option {
	return func(pod *v1.Pod) {
		if pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		pod.Annotations["k8s.v1.cni.cncf.io/networks"] = networks
	}
}

// TestNetworks: pods talk over the network that their annotation names, whatever their
// first network is, and read from their annotation what it gave them.
func TestNetworks(t *testing.T) {
	sideBySide(t)
	s := newStage(t, "10.0.70.90-10.0.70.94")
	networks, err := deploy.NewNetworks(s.ctx, s.config)
	s.must(err)
	// Of the default namespace, whose networks the agents run as they are.
	s.must(networks.Create(s.ctx, "default", s.name, storageNet))

	floating := s.start("floating", netexec, s.floating, naming("default/"+s.name), on("node1"))
	ordinary := s.start("ordinary", netexec, naming(`[{"namespace":"default","name":"`+s.name+`","interface":"data0"}]`), on("node1"))
	addresses := map[string]string{}
	for pod, ifName := range map[*v1.Pod]string{floating: "net1", ordinary: "data0"} {
		var status []struct {
			Name, Interface string
			IPs             []string
		}
		s.eventually("the pod says what its networks gave it", func() error {
			return json.Unmarshal([]byte(s.get(pod.Name).Annotations[networkStatus]), &status)
		})
		if len(status) != 2 || status[0].IPs[0] != pod.Status.PodIP || status[1].Name != "default/"+s.name || status[1].Interface != ifName {
			t.Fatalf("%s: network-status is %+v", pod.Name, status)
		}
		addresses[pod.Name] = status[1].IPs[0]
	}
	from, to := s.podParty(floating), s.podParty(ordinary)
	to.address = addresses[ordinary.Name]
	seen, err := from.ask(s.ctx, "http", to.address, witness.Port, "clientip")
	s.must(err)
	if source := netip.MustParseAddrPort(seen).Addr().String(); source != addresses[floating.Name] {
		t.Errorf("on the network the pod is seen as %s, want %s", source, addresses[floating.Name])
	}

	s.delete(floating.Name, ordinary.Name)
	s.agree()
	if links := s.run("node1", "ip", "-o", "link", "show", "master", "storage0"); strings.TrimSpace(links) != "" {
		t.Errorf("the deleted pods' links are left:\n%s", links)
	}
	s.run("node1", "ip", "link", "del", "storage0") // the bridge plugin leaves it
	s.must(networks.Delete(s.ctx, "default", s.name))
}
