// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Configurations as these projects install them.
const (
	calicoConf = `{"name":"k8s-pod-network","cniVersion":"0.3.1","plugins":[
		{"type":"calico","log_level":"info","log_file_path":"/var/log/calico/cni/cni.log","datastore_type":"kubernetes","nodename":"node1","mtu":0,
		 "ipam":{"type":"calico-ipam"},"policy":{"type":"k8s"},"kubernetes":{"kubeconfig":"/etc/cni/net.d/calico-kubeconfig"}},
		{"type":"portmap","snat":true,"capabilities":{"portMappings":true}},
		{"type":"bandwidth","capabilities":{"bandwidth":true}}]}`
	ciliumConf  = `{"cniVersion":"0.3.1","name":"cilium","plugins":[{"type":"cilium-cni","enable-debug":false,"log-file":"/var/run/cilium/cilium-cni.log"}]}`
	flannelConf = `{"name":"cbr0","cniVersion":"0.3.1","plugins":[{"type":"flannel","delegate":{"hairpinMode":true,"isDefaultGateway":true}},{"type":"portmap","capabilities":{"portMappings":true}}]}`
	kindnetConf = `{"cniVersion":"0.3.1","name":"kindnet","plugins":[{"type":"ptp","ipMasq":false,"mtu":1500,
		"ipam":{"type":"host-local","dataDir":"/run/cni-ipam-state","routes":[{"dst":"0.0.0.0/0"}],"ranges":[[{"subnet":"10.244.0.0/24"}]]}}]}`
	kubeOVNConf = `{"name":"kube-ovn","cniVersion":"0.3.1","plugins":[{"type":"kube-ovn","server_socket":"/run/openvswitch/kube-ovn-daemon.sock"}]}`
	multusConf  = `{"cniVersion":"0.3.1","name":"multus-cni-network","type":"multus","kubeconfig":"/etc/cni/net.d/multus.d/multus.kubeconfig","delegates":[{"type":"flannel"}]}`
)

func TestNeeds(t *testing.T) {
	for name, test := range map[string]struct {
		config string
		want   []need
	}{
		"Calico":   {calicoConf, []need{{"calico", "/etc/cni/net.d/calico-kubeconfig"}, {"calico", "/var/lib/calico/nodename"}}},
		"Cilium":   {ciliumConf, []need{{"cilium-cni", "/var/run/cilium/cilium.sock"}}},
		"flannel":  {flannelConf, nil},
		"kindnet":  {kindnetConf, []need{{"ptp", "/run/cni-ipam-state"}}},
		"Kube-OVN": {kubeOVNConf, []need{{"kube-ovn", "/run/openvswitch/kube-ovn-daemon.sock"}, {"kube-ovn", "/run/openvswitch/kube-ovn.sock"}}},
		"Multus":   {multusConf, []need{{"multus", "/etc/cni/net.d/multus.d/multus.kubeconfig"}}},
		"Calico that takes the node's name from its configuration": {strings.Replace(calicoConf, `"mtu":0`, `"nodename_file_optional":true`, 1), []need{{"calico", "/etc/cni/net.d/calico-kubeconfig"}}},
		"a URL of a socket": {`{"name":"n","plugins":[{"type":"p","sockets":["unix:///run/p.sock"]}]}`, []need{{"p", "/run/p.sock"}}},
	} {
		t.Run(name, func(t *testing.T) {
			network, err := ParseNamed([]byte(test.config), "n")
			if err != nil {
				t.Fatal(err)
			}
			got, err := network.needs()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(need{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A plugin's file may be there, or the plugin can make it; where neither is so, the error names it.
func TestReaches(t *testing.T) {
	dir := t.TempDir()
	there := filepath.Join(dir, "there")
	if err := os.WriteFile(there, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{
		there:                                    true,
		filepath.Join(dir, "new", "folder", "x"): true,
		filepath.Join(there, "x"):                false,
	} {
		network, err := Parse([]byte(`{"name":"n","plugins":[{"type":"p","file":"` + path + `"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		err = (&Exec{}).Reaches(network, dir)
		if want && err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if !want && (!errors.Is(err, ErrNeedsNode) || !strings.Contains(err.Error(), "plugin p needs") || !strings.Contains(err.Error(), path)) {
			t.Errorf("%s: %v", path, err)
		}
		if err := (&Exec{Root: "/host"}).Reaches(network, dir); err != nil {
			t.Errorf("%s, in the node's file system: %v", path, err)
		}
	}
}

// The plugins of k3s are links to a program in another folder, which the agent's container may not
// have.
func TestReachesLinkedPlugins(t *testing.T) {
	bin, data := t.TempDir(), t.TempDir()
	program := filepath.Join(data, "bin", "cni")
	for name, target := range map[string]string{"cni": program, "flannel": "cni", "portmap": "cni"} {
		if err := os.Symlink(target, filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	network, err := Parse([]byte(flannelConf))
	if err != nil {
		t.Fatal(err)
	}
	if err := (&Exec{}).Reaches(network, bin); !errors.Is(err, ErrNeedsNode) || !strings.Contains(err.Error(), "plugin flannel needs") || !strings.Contains(err.Error(), filepath.Dir(program)) {
		t.Errorf("without the program: %v", err)
	}
	if err := (&Exec{Root: "/host"}).Reaches(network, bin); err != nil {
		t.Errorf("in the node's file system: %v", err)
	}
	if err := os.Mkdir(filepath.Dir(program), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, nil, 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	if err := (&Exec{}).Reaches(network, bin); err != nil {
		t.Errorf("with the program: %v", err)
	}
	// It is not installed yet, on the node neither.
	if err := (&Exec{}).Reaches(network, data); err != nil {
		t.Errorf("without plugins: %v", err)
	}
}
