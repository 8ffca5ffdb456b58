// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/simulation"
)

// matrixTable says what becomes of the addresses whose pods ended, for every
// kind of workload, release policy and event. It follows from what
// docs/explanation/release.md promises:
//
//	freed   nobody has them
//	name    the pods of the same names have them again
//	node    the pods on the same nodes have them again
//	share   the workload keeps them, and its new pods share them out
//	size    freed, but for the workload's spare addresses, the youngest first
//	kept    the workload keeps them without a pod
//	gone    the same, although the workload is gone
//	-x      there is no such cell; matrixCannot says why
//
// Pods that live on keep what they have, in every cell.
//
// Columns: StatefulSet; the same with ordinals from 5; a kind StatefulSet of another API group;
// Database, a custom kind that numbers its pods from one; Deployment; ReplicaSet; Rollout, a custom
// kind that owns ReplicaSets; Fleet, a custom kind that owns pods with random names; DaemonSet;
// Job; CronJob, of which the test runs a Job; pod without a controller.
const matrixTable = `
event                     policy      sts    from5  other  db     deploy  rs     rollout  fleet  daemon  job    cron   pod
pods deleted              PodDeleted  freed  freed  freed  freed  freed   freed  freed    freed  freed   freed  freed  freed
pods deleted              Retain      name   name   name   name   share   share  share    share  node    share  share  freed
pods deleted              Never       name   name   name   name   share   share  share    share  node    share  share  gone
pods failed               PodDeleted  freed  freed  freed  freed  freed   freed  freed    freed  freed   freed  freed  freed
pods failed               Retain      name   name   name   name   share   share  share    share  node    share  share  kept
pods failed               Never       name   name   name   name   share   share  share    share  node    share  share  kept
pods succeeded            PodDeleted  freed  freed  freed  freed  freed   freed  freed    freed  freed   freed  freed  freed
pods succeeded            Retain      name   name   name   name   share   share  share    share  node    freed  kept   kept
pods succeeded            Never       name   name   name   name   share   share  share    share  node    kept   kept   kept
run again                 PodDeleted  -c     -c     -c     -c     -c      -c     -c       -c     -c      -c     freed  -c
run again                 Retain      -c     -c     -c     -c     -c      -c     -c       -c     -c      -c     share  -c
run again                 Never       -c     -c     -c     -c     -c      -c     -c       -c     -c      -c     share  -c
pods evicted              PodDeleted  freed  freed  freed  freed  freed   freed  freed    freed  freed   freed  freed  freed
pods evicted              Retain      name   name   name   name   share   share  share    share  node    share  share  freed
pods evicted              Never       name   name   name   name   share   share  share    share  node    share  share  gone
unseen by controller      PodDeleted  freed  freed  freed  freed  freed   freed  freed    freed  freed   freed  freed  freed
unseen by controller      Retain      name   name   name   name   share   share  share    share  node    share  share  freed
unseen by controller      Never       name   name   name   name   share   share  share    share  node    share  share  name
unseen by scheduler       PodDeleted  freed  freed  freed  freed  freed   freed  freed    freed  freed   freed  freed  freed
unseen by scheduler       Retain      name   name   name   name   share   share  share    share  node    share  share  freed
unseen by scheduler       Never       name   name   name   name   share   share  share    share  node    share  share  name
node lost                 PodDeleted  freed  freed  freed  freed  freed   freed  freed    freed  freed   freed  freed  freed
node lost                 Retain      name   name   name   name   share   share  share    share  node    share  share  freed
node lost                 Never       name   name   name   name   share   share  share    share  node    share  share  gone
node removed              PodDeleted  -n     -n     -n     -n     -n      -n     -n       -n     freed   -n     -n     -n
node removed              Retain      -n     -n     -n     -n     -n      -n     -n       -n     freed   -n     -n     -n
node removed              Never       -n     -n     -n     -n     -n      -n     -n       -n     kept    -n     -n     -n
node removed and back     PodDeleted  -n     -n     -n     -n     -n      -n     -n       -n     freed   -n     -n     -n
node removed and back     Retain      -n     -n     -n     -n     -n      -n     -n       -n     freed   -n     -n     -n
node removed and back     Never       -n     -n     -n     -n     -n      -n     -n       -n     node    -n     -n     -n
rolling update            PodDeleted  freed  freed  freed  freed  freed   -r     freed    freed  freed   -j     -t     -p
rolling update            Retain      name   name   name   name   share   -r     share    share  node    -j     -t     -p
rolling update            Never       name   name   name   name   share   -r     share    share  node    -j     -t     -p
scaled down               PodDeleted  freed  freed  freed  freed  freed   freed  freed    freed  freed   freed  freed  -p
scaled down               Retain      freed  freed  freed  freed  size    size   size     size   freed   size   size   -p
scaled down               Never       kept   kept   kept   kept   kept    kept   kept     kept   kept    kept   kept   -p
scaled to zero            PodDeleted  freed  freed  freed  freed  freed   freed  freed    freed  freed   freed  freed  -p
scaled to zero            Retain      freed  freed  freed  freed  freed   freed  freed    freed  freed   freed  freed  -p
scaled to zero            Never       kept   kept   kept   kept   kept    kept   kept     kept   kept    kept   kept   -p
scaled to zero and up     PodDeleted  freed  freed  freed  freed  freed   freed  freed    freed  freed   freed  freed  -p
scaled to zero and up     Retain      freed  freed  freed  freed  freed   freed  freed    freed  freed   freed  freed  -p
scaled to zero and up     Never       name   name   name   name   share   share  share    share  node    share  share  -p
deleted in background     PodDeleted  freed  freed  freed  freed  freed   freed  freed    freed  freed   freed  freed  freed
deleted in background     Retain      freed  freed  freed  freed  freed   freed  freed    freed  freed   freed  freed  freed
deleted in background     Never       gone   gone   gone   gone   gone    gone   gone     gone   gone    gone   gone   gone
deleted in foreground     PodDeleted  freed  freed  freed  freed  freed   freed  freed    freed  freed   freed  freed  freed
deleted in foreground     Retain      freed  freed  freed  freed  freed   freed  freed    freed  freed   freed  freed  freed
deleted in foreground     Never       gone   gone   gone   gone   gone    gone   gone     gone   gone    gone   gone   gone
deleted, pods orphaned    PodDeleted  freed  freed  freed  freed  freed   freed  freed    freed  freed   freed  freed  -d
deleted, pods orphaned    Retain      freed  freed  freed  freed  freed   freed  freed    freed  freed   freed  freed  -d
deleted, pods orphaned    Never       gone   gone   gone   gone   gone    gone   gone     gone   gone    gone   gone   -d
orphans adopted           PodDeleted  freed  freed  freed  freed  freed   freed  freed    freed  freed   -u     -o     -d
orphans adopted           Retain      name   name   name   name   share   share  share    share  node    -u     -o     -d
orphans adopted           Never       name   name   name   name   share   share  share    share  node    -u     -o     -d
recreated                 PodDeleted  freed  freed  freed  freed  freed   freed  freed    freed  freed   freed  freed  freed
recreated                 Retain      freed  freed  freed  freed  freed   freed  freed    freed  freed   freed  freed  freed
recreated                 Never       name   name   name   name   share   share  share    share  node    share  share  name
recreated at once         PodDeleted  freed  freed  freed  freed  freed   freed  freed    freed  freed   freed  freed  -s
recreated at once         Retain      freed  freed  freed  freed  freed   freed  freed    freed  freed   freed  freed  -s
recreated at once         Never       name   name   name   name   share   share  share    share  node    share  share  -s
`

// matrixCannot says why cells of the table do not exist.
var matrixCannot = map[string]string{
	"-n": "only the addresses of a DaemonSet stand for nodes; for other kinds it is a node lost",
	"-r": "a ReplicaSet does not replace its pods when its template changes",
	"-j": "the template of a Job cannot change",
	"-t": "the template of a CronJob is for its next run",
	"-c": "only a CronJob runs again",
	"-p": "a pod without a controller is neither scaled nor updated",
	"-d": "a pod has no dependents",
	"-o": "a CronJob does not adopt Jobs",
	"-u": "a Job selects pods by its own UID: it adopts no other's",
	"-s": "a pod cannot be created while one of its name is there",
}

// outcome is a word of the table.
type outcome string

// matrixCell is one cell of the table.
type matrixCell struct {
	event, kind string
	policy      v1alpha1.ReleasePolicy
	want        outcome
}

// matrixCells parses the table. Cells that cannot be are left out.
func matrixCells() ([]matrixCell, error) {
	var cells []matrixCell
	columns := regexp.MustCompile(` {2,}`)
	lines := strings.Split(strings.TrimSpace(matrixTable), "\n")
	header := columns.Split(lines[0], -1)
	for _, line := range lines[1:] {
		row := columns.Split(line, -1)
		if len(row) != len(header) {
			return nil, fmt.Errorf("the table has %d columns, not %q", len(header), line)
		}
		for i, word := range row[2:] {
			switch {
			case slices.Contains(outcomes, outcome(word)):
				cells = append(cells, matrixCell{event: row[0], policy: v1alpha1.ReleasePolicy(row[1]), kind: header[2+i], want: outcome(word)})
			case matrixCannot[word] == "":
				return nil, fmt.Errorf("the table has an unknown word: %q", word)
			}
		}
	}
	return cells, nil
}

// The table has a row for every event and policy.
func TestMatrixIsComplete(t *testing.T) {
	cells, err := matrixCells()
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{}
	for _, cell := range cells {
		if matrixEvents[cell.event].happen == nil {
			t.Errorf("there is no event %q", cell.event)
		}
		if _, ok := simulation.Kinds[cell.kind]; !ok {
			t.Errorf("there is no kind %q", cell.kind)
		}
		rows[cell.event+" "+string(cell.policy)] = true
	}
	for event := range matrixEvents {
		for _, policy := range []v1alpha1.ReleasePolicy{v1alpha1.ReleasePodDeleted, v1alpha1.ReleaseRetain, v1alpha1.ReleaseNever} {
			if !rows[event+" "+string(policy)] {
				t.Errorf("the table has no row %q, %s", event, policy)
			}
		}
	}
	t.Logf("%d cells", len(cells))
}
