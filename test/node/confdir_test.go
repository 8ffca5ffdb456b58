// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/agent/netnstest"
)

// The runtime keeps a network whose plugins the agent cannot run, and calls Berth as soon as it
// can; whatever other programs do to the configuration then is undone, or said.
func TestRuntimeConfiguration(t *testing.T) {
	t.Parallel()
	network := newNetwork(t)
	const address = "10.0.60.11"
	n := network.newHost(t, "confdir-a", address)
	n.args = []string{"--bind-address=" + address, "--secure-port=10265"}
	const normal = `{"cniVersion":"1.0.0","name":"default-net","plugins":[{"type":"ptp","ipam":{"type":"host-local","subnet":"10.244.0.0/24"%s}}]}`
	// The folder is read-only, as those of the agent's image.
	n.write("net.d/10-default.conflist", fmt.Sprintf(normal, `,"dataDir":"/proc/sys/net/leases"`))
	n.write("kubeconfig", kubeconfig(t))
	n.start()
	t.Cleanup(n.stop)
	ready := func(want string) {
		t.Helper()
		netnstest.Eventually(t, func() error {
			code, text, err := ask(network.client, address+":10265", "/readyz", "")
			if err != nil {
				return err
			}
			in := n.inspection()
			if (want == "") != (code == http.StatusOK) || !strings.Contains(in.NotReady, want) || code != http.StatusOK && strings.Contains(text, "plugin") {
				err = fmt.Errorf("%d %s, not ready %q, want %q", code, text, in.NotReady, want)
			}
			return err
		})
	}
	ready("its plugin ptp needs the node's file system: it works with /proc/sys/net/leases")
	path := n.dir + "/net.d/00-berth.conflist"
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the runtime calls an agent that cannot run the node's network: %v", err)
	}

	n.write("net.d/10-default.conflist", fmt.Sprintf(normal, ""))
	ready("")
	if err := os.Rename(path, path+".cilium_bak"); err != nil {
		t.Fatal(err)
	}
	netnstest.Eventually(t, func() error { _, err := os.Stat(path); return err })
	n.write("net.d/00-a.conflist", fmt.Sprintf(normal, ""))
	ready(`the runtime takes 00-a.conflist (plugin "ptp") in place of 00-berth.conflist`)
	if err := os.Remove(n.dir + "/net.d/00-a.conflist"); err != nil {
		t.Fatal(err)
	}
	ready("")

	netnstest.Eventually(t, func() error {
		events, err := apiOf(t).kube.CoreV1().Events("default").List(context.WithoutCancel(t.Context()), metav1.ListOptions{FieldSelector: "reason=RuntimeDoesNotCallBerth,involvedObject.kind=Node,involvedObject.name=confdir-a"})
		if err == nil && len(events.Items) == 0 {
			err = errors.New("no event of the node")
		}
		return err
	})
}
