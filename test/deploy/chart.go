// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/berth-dev/berth/test/lab"
)

// Chart is the folder of Berth's chart.
func Chart() (string, error) {
	root, err := Root()
	return filepath.Join(root, "manifests", "chart"), err
}

// ChartObjects renders the chart in a namespace. values is a file of values; empty: the
// defaults.
func ChartObjects(ctx context.Context, progress io.Writer, namespace, values string) ([]*unstructured.Unstructured, error) {
	render, err := lab.BuildProgram(ctx, progress, "helm/render")
	if err != nil {
		return nil, err
	}
	chart, err := Chart()
	if err != nil {
		return nil, err
	}
	command := exec.CommandContext(ctx, render, "-chart", chart, "-namespace", namespace, "-values", values)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	text, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("render the chart: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return Decode(text)
}
