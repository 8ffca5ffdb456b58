// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/berth-dev/berth/test/deploy"
)

// operator is the module with the kinds of Prometheus' operator. It is fetched by itself:
// as a requirement it would raise versions of what the tests are built with.
const operator = "github.com/prometheus-operator/prometheus-operator@v0.85.0"

// OperatorKinds returns the CustomResourceDefinitions of PodMonitor and PrometheusRule.
func OperatorKinds(ctx context.Context) ([]*unstructured.Unstructured, error) {
	text, err := exec.CommandContext(ctx, "go", "mod", "download", "-json", operator).Output()
	if err != nil {
		return nil, fmt.Errorf("fetch the kinds of Prometheus' operator: %w: %s", err, text)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(text, &module); err != nil {
		return nil, fmt.Errorf("fetch the kinds of Prometheus' operator: %w", err)
	}
	var kinds []*unstructured.Unstructured
	for _, name := range []string{"podmonitors", "prometheusrules"} {
		text, err := os.ReadFile(filepath.Join(module.Dir, "example/prometheus-operator-crd/monitoring.coreos.com_"+name+".yaml"))
		if err != nil {
			return nil, err
		}
		found, err := deploy.Decode(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		kinds = append(kinds, found...)
	}
	return kinds, nil
}
