// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/test/deploy"
)

// RulesFile is the file with the alerts, from the root of the repository.
const RulesFile = "manifests/chart/monitoring/rules.yaml"

// Group is a group of alerts, with the fields of a rule file that are in use.
type Group struct {
	Name     string  `json:"name"`
	Interval string  `json:"interval,omitempty"`
	Rules    []Alert `json:"rules"`
}

// Alert is one rule.
type Alert struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for,omitempty"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// RuleFile returns the alerts as Prometheus itself reads them.
func RuleFile() ([]byte, error) {
	root, err := deploy.Root()
	if err != nil {
		return nil, err
	}
	return os.ReadFile(filepath.Join(root, RulesFile))
}

// Alerts returns all alerts in the order of the file.
func Alerts() ([]Alert, error) {
	text, err := RuleFile()
	if err != nil {
		return nil, err
	}
	file := struct {
		Groups []Group `json:"groups"`
	}{}
	if err := yaml.UnmarshalStrict(text, &file); err != nil {
		return nil, fmt.Errorf("%s: %w", RulesFile, err)
	}
	var alerts []Alert
	for _, group := range file.Groups {
		alerts = append(alerts, group.Rules...)
	}
	return alerts, nil
}
