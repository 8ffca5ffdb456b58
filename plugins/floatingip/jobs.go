// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/metadata/metadatalister"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/ipam/customkind"
	"github.com/berth-dev/berth/ipam/podrequest"
)

// newJobs returns an informer of Jobs, and a function that gets a Job from it. An unknown Job may
// be known at the next attempt. kube-scheduler itself does not watch Jobs. A cluster may have many
// finished Jobs, so only each Job's controller reference is kept.
func newJobs(client metadata.Interface) (informer cache.SharedIndexInformer, get podrequest.Getter, err error) {
	resource := batchv1.SchemeGroupVersion.WithResource("jobs")
	informer = metadatainformer.NewFilteredMetadataInformer(client, resource, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
	if err := informer.SetTransform(customkind.ControllerOnly); err != nil {
		return nil, nil, fmt.Errorf("set the transform of the Job informer: %w", err)
	}
	jobs := metadatalister.New(informer.GetIndexer(), resource)
	return informer, func(namespace, name string) (metav1.Object, error) { return jobs.Namespace(namespace).Get(name) }, nil
}
