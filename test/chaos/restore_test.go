// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"maps"
	"os"
	"path/filepath"
)

// restoration says whether the API server is restored from a backup in a round.
type restoration int

const (
	notRestored restoration = iota
	// restoredBetween: while no program runs, as Kubernetes' documentation says.
	restoredBetween
	// restoredBelow: while all run on.
	restoredBelow
)

// restorations of successive rounds. There are not as many as elections, so that each meets each.
var restorations = []restoration{notRestored, restoredBelow, restoredBetween}

// backup has the API server's objects, and the objects that the driver wanted at that time.
type backup struct {
	file      string
	workloads []*workload
	claims    []*claim
	reserved  []string
}

// backUp makes a backup.
func (d *driver) backUp() (*backup, error) {
	b := &backup{file: filepath.Join(d.w.dir, "backup.db"), workloads: copies(d.workloads), claims: copies(d.claims), reserved: append([]string(nil), d.reserved...)}
	for _, wl := range b.workloads {
		wl.annotations = maps.Clone(wl.annotations)
	}
	for _, c := range b.claims {
		c.spec = *c.spec.DeepCopy()
	}
	d.w.say("back up etcd")
	return b, d.w.ControlPlane.Backup(d.w.Ctx, b.file)
}

// restore brings back a backup, and the driver's wishes with it. Pods and records of addresses are
// of one time then; the network of the external assigner is not: it is of no program's etcd. The
// kubelets start anew.
func (d *driver) restore(b *backup) {
	w := d.w
	w.T.Helper()
	w.say("restore etcd")
	w.recorder.stop()
	w.Kubelets.Stop()
	w.Restore(b.file)
	_ = os.Remove(b.file) // the next backup has its name
	w.record()
	w.startKubelets()
	d.workloads, d.claims, d.reserved = b.workloads, b.claims, b.reserved
	d.abandoned = true
}

func copies[T any](all []*T) []*T {
	var made []*T
	for _, one := range all {
		c := *one
		made = append(made, &c)
	}
	return made
}
