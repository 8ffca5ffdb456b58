// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"context"
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/ipam/customkind"
)

// jobs knows the CronJob that created a Job. kube-scheduler does not watch Jobs, and a
// cluster may have many finished ones, so only each Job's controller reference is
// kept. Safe for concurrent use.
type jobs struct {
	informer cache.SharedIndexInformer
}

func newJobs(client metadata.Interface) (*jobs, error) {
	informer := metadatainformer.NewFilteredMetadataInformer(client, batchv1.SchemeGroupVersion.WithResource("jobs"), metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
	if err := informer.SetTransform(customkind.ControllerOnly); err != nil {
		return nil, fmt.Errorf("set the transform of the Job informer: %w", err)
	}
	return &jobs{informer}, nil
}

func (j *jobs) run(ctx context.Context) { j.informer.RunWithContext(ctx) }

// get returns a Job's metadata. An unknown Job may be known at the next attempt.
func (j *jobs) get(namespace, name string) (metav1.Object, error) {
	object, found, err := j.informer.GetStore().GetByKey(namespace + "/" + name)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, apierrors.NewNotFound(batchv1.Resource("jobs"), name)
	}
	return object.(metav1.Object), nil
}
