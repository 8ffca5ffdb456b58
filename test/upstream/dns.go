// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	_ "embed"
	"io"

	"github.com/berth-dev/berth/test/image"
	"github.com/berth-dev/berth/test/lab"
)

//go:embed dns.yaml
var dns string

const dnsImage = "berth.dev/coredns:lab"

// DNS gives the nodes CoreDNS' image and returns the manifest that makes it the cluster's DNS.
func DNS(ctx context.Context, cluster *lab.Cluster, progress io.Writer) (string, error) {
	program, err := lab.BuildProgram(ctx, progress, "dns/coredns")
	if err != nil {
		return "", err
	}
	archive, err := cluster.BuildImage(dnsImage, map[string]string{"/coredns": program}, image.Config{Entrypoint: []string{"/coredns"}})
	if err != nil {
		return "", err
	}
	if err := cluster.LoadImage(ctx, archive); err != nil {
		return "", err
	}
	return fill(dns, struct{ Image, Address string }{dnsImage, cluster.Network().DNS().String()})
}
