// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/simulation/program"
)

// Apply applies manifests/ but for the programs, of the folders that are named or of
// all, and the rival's CRD, and waits until they are served. It is idempotent.
func Apply(ctx context.Context, config *rest.Config, folders ...string) error {
	objects, err := deploy.Decode([]byte(claimCRD))
	if err != nil {
		return fmt.Errorf("read the CRD of claims: %w", err)
	}
	manifests, err := deploy.Manifests(folders...)
	if err != nil {
		return err
	}
	return deploy.Apply(ctx, config, append(objects, manifests...))
}

// CreatePools makes pools.
func CreatePools(ctx context.Context, config *rest.Config, pools []*v1alpha1.IPPool) error {
	berth, err := client.NewForConfig(config)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(30)
	for _, pool := range pools {
		group.Go(func() error {
			_, err := berth.IPPools.Create(ctx, pool, metav1.CreateOptions{})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("create pools: %w", err)
	}
	return nil
}

// SchedulerConfig is the configuration of the manifests with a profile of this
// name: as it is, or without what makes it Berth's. It does not elect a leader,
// and its client is limited by nothing that matters.
func SchedulerConfig(profile string, berth bool, kubeconfig string) ([]byte, error) {
	config, err := program.SchedulerConfig()
	if err != nil {
		return nil, err
	}
	config["clientConnection"] = map[string]any{"qps": QPS, "burst": QPS, "kubeconfig": kubeconfig, "contentType": "application/vnd.kubernetes.protobuf"}
	config["leaderElection"] = map[string]any{"leaderElect": false}
	profiles := config["profiles"].([]any)
	first := profiles[0].(map[string]any)
	first["schedulerName"] = profile
	if !berth {
		delete(first, "plugins")
		delete(first, "pluginConfig")
	}
	return yaml.Marshal(config)
}

// QPS of every client: the limit is not what is measured.
const QPS = 5000
