// SPDX-License-Identifier: Apache-2.0

// Package write makes the clients by which a console writes, and asks programs of Berth's. They
// have the credentials of the user who asks, and never those of the console: the API server's
// authorization, admission and audit log decide and record.
package write

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/cmd/kubectl-berth/address"
	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/bgp"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/access"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failover"
	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
)

// To says where a console writes, and what.
type To struct {
	// Config is the API server's.
	Config *rest.Config
	// Namespace is that of Berth's programs.
	Namespace string
	// Writes: it writes. Else it only asks.
	Writes bool
}

// As returns a writer with the credentials of the config.
func (t To) As() (*access.Writer, error) {
	connections, err := rest.HTTPClientFor(t.Config)
	if err != nil {
		return nil, fmt.Errorf("create the client that writes: %w", err)
	}
	kube, err := kubernetes.NewForConfigAndClient(t.Config, connections)
	if err != nil {
		return nil, fmt.Errorf("create the client that asks: %w", err)
	}
	as, call := &access.Writer{}, &command.Call{Kube: kube, System: t.Namespace}
	as.BGP = func(ctx context.Context) (*access.Told, error) { return told(bgp.Show(ctx, call)) }
	as.Failover = func(ctx context.Context) (*access.Told, error) { return told(failover.Show(ctx, call)) }
	as.Traffic = func(of standing.Address) access.Question {
		return func(ctx context.Context) (*access.Told, error) {
			return told(address.Traffic(ctx, call, call.Ports(), of))
		}
	}
	if !t.Writes {
		return as, nil
	}
	berth, err := client.NewForConfigAndClient(t.Config, connections)
	if err != nil {
		return nil, err
	}
	objects, err := dynamic.NewForConfigAndClient(t.Config, connections)
	if err != nil {
		return nil, fmt.Errorf("create the client that writes: %w", err)
	}
	as.FloatingIPs = berth.FloatingIPs
	as.IPPools = objects.Resource(v1alpha1.SchemeGroupVersion.WithResource("ippools"))
	as.IPClaims = func(namespace string) access.Objects {
		return objects.Resource(v1alpha1.SchemeGroupVersion.WithResource("ipclaims")).Namespace(namespace)
	}
	return as, nil
}

// AsBearer returns a writer with a user's bearer token, and without the credentials in the config.
func (t To) AsBearer(token string) (*access.Writer, error) {
	t.Config = rest.AnonymousClientConfig(t.Config)
	t.Config.BearerToken = token
	return t.As()
}

// told returns what a command of kubectl berth answers to people.
func told(said *answer.Answer, err error) (*access.Told, error) {
	if said == nil {
		return nil, err // without one the answer says it all
	}
	t := &access.Told{}
	for _, column := range said.Table.ColumnDefinitions {
		t.Columns = append(t.Columns, column.Name)
	}
	for _, row := range said.Table.Rows {
		var cells []string
		for _, cell := range row.Cells {
			cells = append(cells, fmt.Sprint(cell))
		}
		t.Rows = append(t.Rows, cells)
	}
	var text bytes.Buffer
	said.Text(&text, false)
	for line := range strings.Lines(text.String()) {
		if line = strings.TrimRight(line, "\n"); line != "" {
			line, is := strings.CutPrefix(line, "  ")
			t.Lines = append(t.Lines, access.Line{Text: line, IsCommand: is})
		}
	}
	return t, nil
}
