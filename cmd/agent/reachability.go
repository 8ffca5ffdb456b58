// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/http"

	"k8s.io/client-go/rest"
)

// apiReachable returns a function that tries whether the API server answers anything, by a
// connection of its own: others may be dead and not know it yet, or wait for their turn. It sends
// no credentials; a refusal is an answer, too. An error of the API server's own, or of a proxy
// before it, is none.
func apiReachable(config *rest.Config) (func(ctx context.Context) error, error) {
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	secrets, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, fmt.Errorf("prepare connections to the API server: %w", err)
	}
	proxy := config.Proxy
	if proxy == nil {
		proxy = http.ProxyFromEnvironment
	}
	client := http.Client{Transport: &http.Transport{TLSClientConfig: secrets, DialContext: config.Dial, Proxy: proxy, DisableKeepAlives: true}}
	address := server.JoinPath("version").String()
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		_ = response.Body.Close()
		if response.StatusCode >= http.StatusInternalServerError {
			return fmt.Errorf("GET %s: %s", address, response.Status)
		}
		return nil
	}, nil
}
