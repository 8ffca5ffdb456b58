// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/berth-dev/berth/cmd/kubectl-berth/transfer/backup"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

var savedAt = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// savedObjects are as the API server has them.
func savedObjects() *backup.Objects {
	since := metav1.NewTime(savedAt.Add(-time.Hour))
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{
			Name: name, UID: "uid", ResourceVersion: "12", Generation: 3, CreationTimestamp: since,
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "berth-scheduler"}},
		}
	}
	ip := func(address string, owner *v1alpha1.Owner, pod string, policy v1alpha1.ReleasePolicy) *v1alpha1.FloatingIP {
		ip := &v1alpha1.FloatingIP{ObjectMeta: meta(address), Spec: v1alpha1.FloatingIPSpec{Address: address, Pool: "web", Owner: owner, ReleasePolicy: policy, Since: &since}}
		if pod != "" {
			ip.Spec.Pod, ip.Spec.Node = &v1alpha1.PodReference{Name: pod, UID: "uid-pod"}, "node1"
		}
		return ip
	}
	set := &v1alpha1.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: "shop", Name: "web", UID: "uid-set", PodName: "web-0"}
	deployment := &v1alpha1.Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "gate", UID: "uid-deployment"}
	claim := &v1alpha1.IPClaim{ObjectMeta: meta("front"), Spec: v1alpha1.IPClaimSpec{Size: 2, Preallocate: true}, Status: v1alpha1.IPClaimStatus{Addresses: 2}}
	claim.Namespace = "shop"
	return &backup.Objects{
		Pools: []*v1alpha1.IPPool{{
			ObjectMeta: meta("web"),
			Spec:       v1alpha1.IPPoolSpec{Subnet: "10.0.70.0/24", Ranges: []string{"10.0.70.2-10.0.70.9"}, Gateway: "10.0.70.1"},
			Status:     v1alpha1.IPPoolStatus{Capacity: 8},
		}},
		Claims: []*v1alpha1.IPClaim{claim},
		Others: []*unstructured.Unstructured{{Object: map[string]any{
			"apiVersion": "berth.dev/v1alpha1", "kind": "BGPPeer", "metadata": map[string]any{"name": "rack-1", "uid": "uid"},
			"spec": map[string]any{"localASN": int64(65200), "peer": map[string]any{"address": "10.11.0.1", "asn": int64(65101)}},
		}}},
		IPs: []*v1alpha1.FloatingIP{
			ip("10.0.70.6", &v1alpha1.Owner{APIVersion: "berth.dev/v1alpha1", Kind: "IPClaim", Namespace: "shop", Name: "front", UID: "uid-claim"}, "", v1alpha1.ReleaseRetain),
			ip("10.0.70.5", set, "", v1alpha1.ReleaseRetain),
			ip("10.0.70.4", deployment, "gate-1-y", v1alpha1.ReleasePodDeleted),
			ip("10.0.70.3", deployment, "gate-1-x", v1alpha1.ReleasePodDeleted),
			ip("10.0.70.2", set, "web-0", v1alpha1.ReleaseRetain),
		},
	}
}

func TestWriteBackup(t *testing.T) {
	for _, format := range []string{"yaml", "json"} {
		var out bytes.Buffer
		if err := writeBackup(&out, backup.Clean(savedObjects()), format == "json", "https://10.0.60.1:6443", savedAt); err != nil {
			t.Fatal(err)
		}
		golden(t, "backup."+format, out.String())

		read := &backup.Objects{}
		if err := readBackup(out.Bytes(), read); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(backup.Clean(savedObjects()), read); diff != "" {
			t.Errorf("%s: the backup that is read differs from the one that was written:\n%s", format, diff)
		}
	}
}

func TestPrintRestore(t *testing.T) {
	set := *savedObjects().IPs[1]
	set.Spec.Owner = &v1alpha1.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: "shop", Name: "other"}
	until := savedAt.Add(24 * time.Hour)
	made := backup.Restore(&backup.Input{
		Saved: savedObjects(), Existing: &backup.Objects{IPs: []*v1alpha1.FloatingIP{&set}},
		Pods: []*v1.Pod{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "gate-1-x", UID: "uid-pod"},
			Spec:       v1.PodSpec{NodeName: "node1"},
		}},
		Namespaces: []string{"shop"}, Now: savedAt, KeepUntil: until,
	})
	var out bytes.Buffer
	if err := printPlan(&out, made); err != nil {
		t.Fatal(err)
	}
	printSummary(&out, made, false, keptUntil(made, until))
	golden(t, "restore.txt", out.String())
}

// A backup that fails leaves the one before.
func TestWriteFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "berth.yaml")
	write := func(text string, fail error) error {
		return writeFile(name, func(out io.Writer) error {
			if _, err := out.Write([]byte(text)); err != nil {
				return err
			}
			return fail
		})
	}
	if err := write("first", nil); err != nil {
		t.Fatal(err)
	}
	if err := write("second", os.ErrClosed); err == nil {
		t.Error("no error")
	}
	text, err := os.ReadFile(name)
	if err != nil || string(text) != "first" {
		t.Errorf("the file has %q (%v)", text, err)
	}
	if left, err := filepath.Glob(name + ".*"); err != nil || len(left) > 0 {
		t.Errorf("left are %q (%v)", left, err)
	}
}
