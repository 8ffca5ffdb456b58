// SPDX-License-Identifier: Apache-2.0

// Package write makes the clients by which a console writes. They have the credentials of the user who asks, and never those of
// the console: the API server's authorization, admission and audit log decide and record.
package write

import (
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/cmd/kubectl-berth/console/access"
	"github.com/berth-dev/berth/ipam/client"
)

// As returns a writer with the credentials of a config.
func As(config *rest.Config) (*access.Writer, error) {
	berth, err := client.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &access.Writer{FloatingIPs: berth.FloatingIPs}, nil
}

// AsBearer returns a writer with a user's bearer token, to the API server of a config and without the credentials in that.
func AsBearer(config *rest.Config, token string) (*access.Writer, error) {
	theirs := rest.AnonymousClientConfig(config)
	theirs.BearerToken = token
	return As(theirs)
}
