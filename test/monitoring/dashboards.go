// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/prometheus/prometheus/promql/parser"

	"github.com/berth-dev/berth/test/deploy"
)

// DashboardsFolder has the dashboards, from the root of the repository.
const DashboardsFolder = "manifests/chart/monitoring/dashboards"

// Dashboard has the fields of a Grafana dashboard that the tests read.
type Dashboard struct {
	File       string `json:"-"`
	UID        string `json:"uid"`
	Title      string `json:"title"`
	Templating struct {
		List []Variable `json:"list"`
	} `json:"templating"`
	Panels []Panel `json:"panels"`
}

// Variable is a choice at the top of a dashboard.
type Variable struct {
	Name       string      `json:"name"`
	Type       string      `json:"type"`
	Definition string      `json:"definition"`
	AllValue   string      `json:"allValue"`
	Datasource *Datasource `json:"datasource"`
}

// Datasource is where panels and variables have their data from.
type Datasource struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

// Panel is one picture, or the title of a row of them.
type Panel struct {
	ID          int         `json:"id"`
	Type        string      `json:"type"`
	Title       string      `json:"title"`
	Description string      `json:"description"`
	Datasource  *Datasource `json:"datasource"`
	Grid        struct {
		X, Y, W, H int
	} `json:"gridPos"`
	FieldConfig struct {
		Defaults struct {
			Unit string `json:"unit"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
	Targets []Target `json:"targets"`
}

// Target is one query of a panel.
type Target struct {
	RefID      string      `json:"refId"`
	Datasource *Datasource `json:"datasource"`
	Expr       string      `json:"expr"`
	Legend     string      `json:"legendFormat"`
	Instant    bool        `json:"instant"`
}

// Dashboards returns all dashboards.
func Dashboards() ([]Dashboard, error) {
	root, err := deploy.Root()
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(root, DashboardsFolder, "*.json"))
	if err != nil {
		return nil, err
	}
	var all []Dashboard
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		d := Dashboard{File: filepath.Base(file)}
		decoder := json.NewDecoder(bytes.NewReader(text))
		if err := decoder.Decode(&d); err != nil {
			return nil, fmt.Errorf("%s: %w", d.File, err)
		}
		all = append(all, d)
	}
	return all, nil
}

// Expression is one that Prometheus evaluates.
type Expression struct {
	Where string // the alert, or dashboard and panel
	Text  string
}

// Expressions returns the expressions of all alerts and panels, with the values that Grafana puts
// in place of variables where a reader has chosen nothing.
func Expressions() ([]Expression, error) {
	alerts, err := Alerts()
	if err != nil {
		return nil, err
	}
	dashboards, err := Dashboards()
	if err != nil {
		return nil, err
	}
	var all []Expression
	for _, a := range alerts {
		all = append(all, Expression{a.Alert, a.Expr})
	}
	for _, d := range dashboards {
		for _, p := range d.Panels {
			for _, t := range p.Targets {
				all = append(all, Expression{fmt.Sprintf("%s, panel %q, query %s", d.File, p.Title, t.RefID), d.substitute(t.Expr)})
			}
		}
	}
	return all, nil
}

// substitute replaces variables: all values, and four scrapes of half a minute.
func (d Dashboard) substitute(expr string) string {
	expr = strings.ReplaceAll(expr, "$__rate_interval", "2m")
	for _, v := range d.Templating.List {
		expr = strings.ReplaceAll(expr, "$"+v.Name, v.AllValue)
	}
	return expr
}

// Selectors returns the series that an expression reads, as selectors of their present values.
func Selectors(expr string) ([]*parser.VectorSelector, error) {
	parsed, err := parser.ParseExpr(expr)
	if err != nil {
		return nil, err
	}
	var all []*parser.VectorSelector
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		if s, ok := node.(*parser.VectorSelector); ok {
			all = append(all, &parser.VectorSelector{Name: s.Name, LabelMatchers: s.LabelMatchers})
		}
		return nil
	})
	return all, nil
}
