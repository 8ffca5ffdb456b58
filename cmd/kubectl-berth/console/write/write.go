// SPDX-License-Identifier: Apache-2.0

// Package write makes the clients by which a console writes. They have the credentials of the user who asks, and never those of
// the console: the API server's authorization, admission and audit log decide and record.
package write

import (
	"fmt"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/cmd/kubectl-berth/console/access"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
)

// As returns a writer with the credentials of a config.
func As(config *rest.Config) (*access.Writer, error) {
	connections, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("create the client that writes: %w", err)
	}
	berth, err := client.NewForConfigAndClient(config, connections)
	if err != nil {
		return nil, err
	}
	objects, err := dynamic.NewForConfigAndClient(config, connections)
	if err != nil {
		return nil, fmt.Errorf("create the client that writes: %w", err)
	}
	return &access.Writer{
		FloatingIPs: berth.FloatingIPs,
		IPPools:     objects.Resource(v1alpha1.SchemeGroupVersion.WithResource("ippools")),
		IPClaims: func(namespace string) access.Objects {
			return objects.Resource(v1alpha1.SchemeGroupVersion.WithResource("ipclaims")).Namespace(namespace)
		},
	}, nil
}

// AsBearer returns a writer with a user's bearer token, to the API server of a config and without the credentials in that.
func AsBearer(config *rest.Config, token string) (*access.Writer, error) {
	theirs := rest.AnonymousClientConfig(config)
	theirs.BearerToken = token
	return As(theirs)
}
