// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/simulation/kubelet"
)

// lingering is how long the pods of [World.LateKubelet] take to end, so that new ones
// come before old ones are gone.
const lingering = 300 * time.Millisecond

// Kubelet starts the kubelets of all nodes, and agents that answer for these. A broken promise
// fails the test. Pods that are to be deleted and that linger, the test must end.
func (w *World) Kubelet(lingers ...func(*v1.Pod) bool) {
	w.T.Helper()
	w.strictKubelet(kubelet.Options{Lingers: func(pod *v1.Pod) bool {
		return slices.ContainsFunc(lingers, func(lingers func(*v1.Pod) bool) bool { return lingers(pod) })
	}})
}

// LateKubelet is Kubelet, where pods take some time to end: a grace period.
func (w *World) LateKubelet() {
	w.T.Helper()
	w.strictKubelet(kubelet.Options{Grace: lingering})
}

func (w *World) strictKubelet(options kubelet.Options) {
	w.T.Helper()
	options.Strict, options.Complain, options.Report = true, w.T.Errorf, w.T.Errorf
	w.StartKubelets(options)
	nodes, err := w.Kube.CoreV1().Nodes().List(w.Ctx, metav1.ListOptions{})
	if err != nil {
		w.T.Fatal(err)
	}
	var names []string
	for i := range nodes.Items {
		names = append(names, nodes.Items[i].Name)
	}
	w.AnsweringAgents(names...)
}

// StartKubelets starts the kubelets of all nodes until the test ends.
func (w *World) StartKubelets(options kubelet.Options) {
	w.T.Helper()
	options.Kube, options.Berth = w.Kube, w.Berth
	kubelets, err := kubelet.Start(w.Ctx, options)
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(kubelets.Stop)
	w.Kubelets = kubelets
}

// SetPhase writes a pod's phase and readiness as the kubelet does, whatever it became
// since it was read.
func (w *World) SetPhase(pod *v1.Pod, phase v1.PodPhase) error {
	pod = pod.DeepCopy()
	pod.ResourceVersion = ""
	return kubelet.SetPhase(w.Ctx, w.Kube, pod, phase, "")
}
