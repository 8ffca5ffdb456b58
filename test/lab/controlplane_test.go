// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// tetherEnv makes this test's own program a victim; see TestControlPlaneTether.
const tetherEnv = "LAB_TEST_TETHER"

func TestControlPlane(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	if err := Build(ctx, testWriter{t}); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		opts ControlPlaneOptions
	}{
		{"alone", ControlPlaneOptions{}},
		{"with controllers", ControlPlaneOptions{Controllers: true, Scheduler: true, Audit: true}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			begun := time.Now()
			cp, err := StartControlPlane(ctx, tc.opts)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("started in %s", time.Since(begun).Round(time.Millisecond))
			defer func() {
				if err := cp.Stop(); err != nil {
					t.Error(err)
				}
				if _, err := os.Stat(cp.Dir()); err == nil {
					t.Errorf("%s is left", cp.Dir())
				}
			}()
			client, err := cp.Clientset()
			if err != nil {
				t.Fatal(err)
			}
			pods := client.CoreV1().Pods("default")
			if _, err := pods.Create(ctx, webPod("nowhere"), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if tc.opts.Audit {
				if b, err := os.ReadFile(cp.AuditLog()); err != nil || !strings.Contains(string(b), "web-nowhere") {
					t.Errorf("the audit log does not have the pod (%v)", err)
				}
			}
			if !tc.opts.Controllers {
				return
			}
			labels := map[string]string{"app": "web"}
			one := int32(1)
			_, err = client.AppsV1().Deployments("default").Create(ctx, &appsv1.Deployment{
				ObjectMeta: metav1.ObjectMeta{Name: "web"},
				Spec: appsv1.DeploymentSpec{Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: labels},
					Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: webPod("").Spec}},
			}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			err = waitFor(ctx, "a pod of the Deployment", nil, func(ctx context.Context) error {
				list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
				if err == nil && len(list.Items) == 0 {
					err = fmt.Errorf("no pod")
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// A program that ends at once must not cost a time-out, and must say why.
func TestControlPlaneBadFlag(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience/2)
	defer cancel()
	_, err := StartControlPlane(ctx, ControlPlaneOptions{APIServerFlags: []string{"--no-such-flag"}})
	if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "unknown flag: --no-such-flag") {
		t.Errorf("StartControlPlane() = %v", err)
	}
}

// TestControlPlaneTether kills a program that has a control plane; no
// process of it may be left.
func TestControlPlaneTether(t *testing.T) {
	if os.Getenv(tetherEnv) != "" {
		cp, err := StartControlPlane(context.Background(), ControlPlaneOptions{})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("dir", cp.Dir())
		select {}
	}
	victim := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestControlPlaneTether$")
	victim.Env = append(os.Environ(), tetherEnv+"=1")
	stdout, err := victim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	var dir string
	for sc := bufio.NewScanner(stdout); dir == "" && sc.Scan(); {
		dir, _ = strings.CutPrefix(sc.Text(), "dir ")
		if dir == sc.Text() {
			dir = ""
		}
	}
	if err := victim.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = victim.Wait() // killed
	if dir == "" {
		t.Fatal("the victim did not start")
	}
	defer os.RemoveAll(dir)
	err = waitFor(t.Context(), "the control plane to end", nil, func(ctx context.Context) error {
		out, err := exec.CommandContext(ctx, "grep", "-lsF", "--", dir, "-r", "/proc", "--include=cmdline").Output()
		if err == nil {
			return fmt.Errorf("still there: %s", out)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
