// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"os"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/snapshot"
	restore "go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
)

// revisionBump is by how much a restore moves etcd's revision on, which must be more than all
// writes since the backup: clients would otherwise take new objects for old ones.
// https://etcd.io/docs/v3.6/op-guide/recovery/ has this number as its example.
const revisionBump = 1_000_000_000

// Backup saves all objects of the API server to a new file, as etcdctl snapshot save does.
func (cp *ControlPlane) Backup(ctx context.Context, file string) error {
	if _, err := snapshot.SaveWithVersion(ctx, zap.NewNop(), clientv3.Config{Endpoints: []string{cp.core.flags.etcdURL(0)}}, file); err != nil {
		return fmt.Errorf("back up etcd: %w", err)
	}
	return nil
}

// storedAtOnce is how many objects one transaction of etcd has; it takes 128.
const storedAtOnce = 100

// Store writes objects, by their keys in etcd, past the API server, which takes milliseconds for
// each. They have all that it fills in: kinds, UIDs and times.
func (cp *ControlPlane) Store(ctx context.Context, objects iter.Seq2[string, any]) error {
	client, err := clientv3.New(clientv3.Config{Context: ctx, Endpoints: []string{cp.core.flags.etcdURL(0)}, Logger: zap.NewNop()})
	if err != nil {
		return fmt.Errorf("reach etcd: %w", err)
	}
	defer client.Close()
	var puts []clientv3.Op
	write := func() error {
		if _, err := client.Txn(ctx).Then(puts...).Commit(); err != nil {
			return fmt.Errorf("write to etcd: %w", err)
		}
		puts = puts[:0]
		return nil
	}
	for key, object := range objects {
		text, err := json.Marshal(object)
		if err != nil {
			return fmt.Errorf("write %s to etcd: %w", key, err)
		}
		if puts = append(puts, clientv3.OpPut("/registry/"+key, string(text))); len(puts) == storedAtOnce {
			if err := write(); err != nil {
				return err
			}
		}
	}
	return write()
}

// Restore ends the control plane and starts it again with the objects of a backup, as
// https://kubernetes.io/docs/tasks/administer-cluster/configure-upgrade-etcd/#restoring-an-etcd-cluster
// says. Clients that run have to list again. No other method may run meanwhile.
func (cp *ControlPlane) Restore(ctx context.Context, file string) error {
	for _, d := range slices.Backward(cp.core.daemons) {
		d.end()
	}
	cp.core.daemons = nil
	if err := os.RemoveAll(cp.core.flags.file("etcd")); err != nil {
		return fmt.Errorf("restore etcd: %w", err)
	}
	if err := cp.restore(file, revisionBump); err != nil {
		return err
	}
	if err := cp.run(ctx); err != nil {
		return fmt.Errorf("start the restored control plane: %w", err)
	}
	return nil
}

// restore makes etcd's data of a backup, and moves the revision on.
func (cp *ControlPlane) restore(file string, bump uint64) error {
	peer := cp.core.flags.etcdURL(1)
	if err := restore.NewV3(zap.NewNop()).Restore(restore.RestoreConfig{
		SnapshotPath: file, OutputDataDir: cp.core.flags.file("etcd"), Name: "default", PeerURLs: []string{peer}, InitialCluster: "default=" + peer,
		InitialClusterToken: "etcd-cluster", RevisionBump: bump, MarkCompacted: bump > 0,
	}); err != nil {
		return fmt.Errorf("restore etcd: %w", err)
	}
	return nil
}
