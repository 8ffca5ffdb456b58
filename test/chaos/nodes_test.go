// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/simulation/kubelet"
)

// nodeName returns the name of a node, from 0. Nodes with even numbers have
// InternalIPs in 10.0.60.0/24, the others in 10.0.61.0/24.
func nodeName(i int) string { return fmt.Sprintf("node-%d", i) }

// startNodes makes the nodes and runs their kubelets.
func (w *world) startNodes() {
	w.T.Helper()
	for i := range w.settings.nodes {
		node := kubelet.NewNode(nodeName(i), fmt.Sprintf("10.0.%d.%d", 60+i%2, 10+i/2))
		if _, err := w.Kube.CoreV1().Nodes().Create(w.Ctx, node, metav1.CreateOptions{}); err != nil {
			w.T.Fatal(err)
		}
	}
	w.startKubelets()
	var names []string
	for i := range w.settings.nodes {
		names = append(names, nodeName(i))
	}
	w.AnsweringAgents(names...)
}

// startKubelets runs the kubelets of the nodes until they are stopped, or the test ends.
func (w *world) startKubelets() {
	w.T.Helper()
	w.StartKubelets(kubelet.Options{
		Complain: w.violation, Report: w.say,
		Attached: func(addr netip.Addr) string {
			holders, _ := w.network.holders()
			return holders[addr]
		},
	})
	for i := range w.settings.nodes {
		go w.Kubelets.Keep(nodeName(i))
	}
}
