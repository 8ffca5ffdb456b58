// SPDX-License-Identifier: Apache-2.0

// Package devicemanager tests the agent's device plugin against the kubelet's own part that counts
// devices. It needs root and fails without.
package devicemanager

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"

	"github.com/berth-dev/berth/agent/deviceplugin"
	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// envInside is set in the process that has a /var/lib of its own: the kubelet's folder cannot be
// another one.
const envInside = "BERTH_TEST_DEVICE_MANAGER"

// kubelet is the part of a kubelet that counts devices; pods are its pods.
type kubelet struct {
	*devicemanager.ManagerImpl
	pods []*v1.Pod
}

// ready says that the kubelet knows its pods.
type ready struct{}

func (ready) AddSource(string) {}
func (ready) AllReady() bool   { return true }

func startKubelet(t *testing.T, pods ...*v1.Pod) *kubelet {
	t.Helper()
	manager, err := devicemanager.NewManagerImpl(nil, topologymanager.NewFakeManager())
	if err != nil {
		t.Fatal(err)
	}
	k := &kubelet{manager, pods}
	if err := k.Start(klog.Background(), func() []*v1.Pod { return k.pods }, ready{}, containermap.NewContainerMap(), sets.New[string]()); err != nil {
		t.Fatal(err)
	}
	return k
}

// wants waits until the kubelet has so many functions.
func (k *kubelet) wants(t *testing.T, capacity, allocatable int64) {
	t.Helper()
	netnstest.Eventually(t, func() error {
		all, some, _ := k.GetCapacity()
		have, can := all[v1alpha1.ResourceVF], some[v1alpha1.ResourceVF]
		if have.Value() != capacity || can.Value() != allocatable {
			return fmt.Errorf("the kubelet counts %v, and can allocate %v, want %d and %d", all, some, capacity, allocatable)
		}
		return nil
	})
}

// admit has the kubelet allocate what a pod requests.
func (k *kubelet) admit(p *v1.Pod) error {
	k.UpdateAllocatedDevices()
	if err := k.Allocate(p, &p.Spec.Containers[0]); err != nil {
		return err
	}
	k.pods = append(k.pods, p)
	return nil
}

func pod(uid, functions string) *v1.Pod {
	limits := v1.ResourceList{v1alpha1.ResourceVF: resource.MustParse(functions)}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: uid, UID: types.UID(uid)},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Limits: limits, Requests: limits}}}},
	}
}

// The kubelet counts the functions that are healthy, lets in as many pods as there are functions
// for, also after it has started again, and none when the agent is gone.
func TestDeviceManager(t *testing.T) {
	if os.Getenv(envInside) == "" {
		again := exec.Command(os.Args[0], "-test.run=^TestDeviceManager$", "-test.v")
		again.Env = append(os.Environ(), envInside+"=1")
		again.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		if out, err := again.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	if err := errors.Join(syscall.Mount("tmpfs", "/var/lib", "tmpfs", 0, ""), os.MkdirAll(deviceplugin.Folder, 0o750)); err != nil {
		t.Fatal(err)
	}
	devices := []deviceplugin.Device{{ID: "0000:01:10.0", Healthy: true}, {ID: "0000:01:10.1", Healthy: true, NUMANode: 1}, {ID: "0000:01:10.2", NUMANode: -1}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- deviceplugin.New(deviceplugin.Folder, func() ([]deviceplugin.Device, error) { return devices, nil }).Run(ctx)
	}()

	k := startKubelet(t)
	k.wants(t, 3, 2)
	if err := k.admit(pod("first", "1")); err != nil {
		t.Error(err)
	}
	if err := k.admit(pod("greedy", "2")); err == nil || !strings.Contains(err.Error(), "Requested: 2, Available: 1") {
		t.Errorf("a pod with two functions of one: %v", err)
	}

	if err := k.Stop(klog.Background()); err != nil {
		t.Error(err)
	}
	k = startKubelet(t, k.pods...)
	k.wants(t, 3, 2)
	if err := k.admit(pod("second", "1")); err != nil {
		t.Error(err)
	}
	if err := k.admit(pod("third", "1")); err == nil || !strings.Contains(err.Error(), "Requested: 1, Available: 0") {
		t.Errorf("a third pod with two functions: %v", err)
	}

	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	k.wants(t, 3, 0)
	if _, err := os.Lstat(deviceplugin.Socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the plugin's socket: %v", err)
	}
}
