// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"context"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/ipamtest"
	"github.com/berth-dev/berth/test/deploy"
)

// The server does what Berth relies on, also with the objects of a backup.
func TestContract(t *testing.T) {
	var backup *Backup
	for _, name := range []string{"new", "from a backup"} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			s, err := Start(ctx, backup)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Wait()
			defer cancel()
			if backup == nil {
				backup = prepare(t, s)
			}
			berth, err := client.NewForConfig(s.Config())
			if err != nil {
				t.Fatal(err)
			}
			ipamtest.Contract(t, berth)
		})
	}
}

// prepare makes what the contract needs.
func prepare(t *testing.T, s *Server) *Backup {
	t.Helper()
	kube, err := kubernetes.NewForConfig(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kube.CoreV1().Namespaces().Create(t.Context(), &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	objects, err := deploy.Manifests("crd")
	if err != nil {
		t.Fatal(err)
	}
	if err := deploy.Apply(t.Context(), s.Config(), objects); err != nil {
		t.Fatal(err)
	}
	return s.Backup()
}
