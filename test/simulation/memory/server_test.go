// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/ipamtest"
	"github.com/berth-dev/berth/test/deploy"
)

func TestContract(t *testing.T) {
	for range 3 {
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			ctx, cancel := context.WithCancel(t.Context())
			s, err := Start(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Wait()
			defer cancel()
			kube := kubernetes.NewForConfigOrDie(s.Config())
			if _, err := kube.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			objects, err := deploy.Manifests()
			if err != nil {
				t.Fatal(err)
			}
			if err := deploy.Apply(ctx, s.Config(), objects); err != nil {
				t.Fatal(err)
			}
			berth, err := client.NewForConfig(s.Config())
			if err != nil {
				t.Fatal(err)
			}
			t.Log(time.Since(begun))
			ipamtest.Contract(t, berth)
		})
	}
}
