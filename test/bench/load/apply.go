// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"fmt"
	"maps"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

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

// SchedulerConfig is the configuration of the manifests, with its profile for ordinary pods and
// once more for others: as it is, or without what makes it Berth's. It does not elect a leader, and
// its client is limited by nothing that matters.
func SchedulerConfig(berth bool, kubeconfig string) ([]byte, error) {
	config, err := program.SchedulerConfig()
	if err != nil {
		return nil, err
	}
	config["clientConnection"] = map[string]any{"qps": QPS, "burst": QPS, "kubeconfig": kubeconfig, "contentType": "application/vnd.kubernetes.protobuf"}
	config["leaderElection"] = map[string]any{"leaderElect": false}
	ordinary := config.Profile()
	if !berth {
		delete(ordinary, "plugins")
		delete(ordinary, "pluginConfig")
	}
	others := maps.Clone(ordinary)
	ordinary["schedulerName"], others["schedulerName"] = Scheduler, Others
	config["profiles"] = []any{ordinary, others}
	return yaml.Marshal(config)
}

// QPS of every client: the limit is not what is measured.
const QPS = 5000
