// SPDX-License-Identifier: Apache-2.0

package day

import (
	"testing"
	"testing/synctest"
	"time"
)

// A backup of etcd is restored while everything runs. The programs recover by themselves: they
// record what runs by the word of the API server, and later deploys wait for nothing. There are no
// StatefulSets: kube-scheduler ends its process, to be started again, where a pod of the same name
// is on another node all at once ("Scheduler cache is corrupted").
func TestRestore(t *testing.T) {
	s := small(t)
	s.deployments = true
	synctest.Test(t, func(t *testing.T) {
		d, stop := begin(t, s)
		defer stop()
		d.fill()
		d.deploy(time.Hour)
		before, berth, kube := d.save(), d.berth.Backup(), d.kube.backup()
		d.deploy(2 * time.Hour)
		// The API server stands still while it is restored.
		kube()
		berth()
		d.workloads = before
		<-time.After(stuck)
		d.tidy()
		d.judge()
		d.deploy(4 * time.Hour)
		d.judge()
		d.empty()
	})
}

// save returns the workloads as they are.
func (d *day) save() (saved []*workload) {
	for _, w := range d.workloads {
		saved = append(saved, &workload{
			cluster: d.cluster, namespace: w.namespace, name: w.name, stateful: w.stateful, policy: w.policy, annotations: w.annotations,
			replicas: w.replicas, version: w.version, owner: w.owner, set: w.set, pods: append([]string(nil), w.pods...), turn: newTurn(),
		})
	}
	return saved
}
