// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
)

// Two schedulers that know nothing of each other race for every pod and every
// address.
func TestTwoSchedulers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	w.nodes(3)
	w.kubelet()
	w.controller()
	w.pool("one", "10.0.70.2-10.0.70.81", onNode("node1"))
	w.pool("rest", "10.0.70.82-10.0.70.161", func(pool *v1alpha1.IPPool) {
		pool.Spec.NodeSubnets = []string{"10.0.60.12/31"}
	})
	first, second := w.scheduler(schedulerOptions{}), w.scheduler(schedulerOptions{})
	pods := newPods("web", 200)
	w.create(pods...)
	// 160 addresses for 200 pods: as pods end, others start.
	w.eventually("wait for the addresses to be used", func() error { return w.countBound(160) })
	for i := range 60 {
		w.delete(fmt.Sprintf("web-%d", i))
	}
	w.eventually("wait for all pods to be bound", func() error { return w.countBound(140) })
	w.invariants()
	for _, s := range []*program{first, second} {
		if err := s.running(); err != nil {
			t.Error(err)
		}
		if n := len(s.seen(func(c call) bool { return strings.HasSuffix(c.Path, "/binding") && c.Code == http.StatusCreated })); n == 0 {
			t.Error("one of the schedulers bound nothing: there was no race")
		}
	}
	w.deleteAll()
}

// countBound complains unless that many pods are bound and, if no more than that
// exist, none waits.
func (w *world) countBound(want int) error {
	pods, err := w.pods()
	if err != nil {
		return err
	}
	bound := 0
	for i := range pods {
		if pods[i].Spec.NodeName != "" {
			bound++
		}
	}
	if bound != want {
		return fmt.Errorf("%d of %d pods are bound, want %d", bound, len(pods), want)
	}
	return nil
}

// deleteAll deletes all pods and waits until no address is in use.
func (w *world) deleteAll() {
	w.t.Helper()
	err := w.kube.CoreV1().Pods(namespace).DeleteCollection(w.ctx, *metav1.NewDeleteOptions(0), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.eventually("wait for all addresses to be free", func() error {
		ips, err := w.ips()
		if err == nil && len(ips) > 0 {
			err = fmt.Errorf("%d are not, for example %s: %+v", len(ips), ips[0].Name, ips[0].Spec)
		}
		return err
	})
}
