// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"fmt"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/cmd/kubectl-berth/audit"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/reclaim"
)

// Auditor returns an auditor of the cluster, as kubectl berth check has one.
func Auditor(config *rest.Config, options audit.Options) (*audit.Auditor, error) {
	berth, err := client.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make the client of Berth's objects: %w", err)
	}
	return audit.New(reclaim.Clients{
		Berth: berth, Kube: kubernetes.NewForConfigOrDie(config), Dynamic: dynamic.NewForConfigOrDie(config), Metadata: metadata.NewForConfigOrDie(config),
	}, options), nil
}
