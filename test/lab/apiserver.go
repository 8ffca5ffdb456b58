// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"path/filepath"
)

const (
	apiServer = "kube-apiserver"
	// apiServerKey is the API server's among state.Daemons.
	apiServerKey = controlHost + "/" + apiServer
)

// StopAPIServer ends the API server as a crash would: etcd, its clients and the network go on, and
// connections to it are refused. It does nothing when the API server is stopped.
func (c *Cluster) StopAPIServer(ctx context.Context) error {
	unlock, err := lock(ctx, c.name, true)
	if err != nil {
		return err
	}
	defer unlock()
	var old process
	err = c.update(func(s *state) {
		old = s.Daemons[apiServerKey]
		delete(s.Daemons, apiServerKey)
	})
	if err == nil {
		err = c.ControlPlane().kill(ctx, apiServer, old)
	}
	if err != nil {
		return fmt.Errorf("stop the API server: %w", err)
	}
	return nil
}

// StartAPIServer starts the stopped API server again and waits until it is ready. It does nothing
// when it runs.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	unlock, err := lock(ctx, c.name, true)
	if err != nil {
		return err
	}
	defer unlock()
	s, err := loadState(c.name)
	if err != nil {
		return fmt.Errorf("start the API server: %w", err)
	}
	if s.Daemons[apiServerKey].alive() {
		return nil
	}
	d, err := c.ControlPlane().start(apiServer, append([]string{filepath.Join(c.bin, apiServer)}, s.APIServer...)...)
	if err != nil {
		return err
	}
	return awaitAPI(ctx, c.Kubeconfig(), []*daemon{d})
}
