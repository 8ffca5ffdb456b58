// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
)

// Exec runs a command in a container and returns its standard output. If it fails, the error
// includes its standard error.
func (c *Cluster) Exec(ctx context.Context, namespace, pod, container string, argv ...string) ([]byte, error) {
	config, err := c.Config()
	if err != nil {
		return nil, err
	}
	kube, err := c.Kube()
	if err != nil {
		return nil, err
	}
	request := kube.CoreV1().RESTClient().Post().Namespace(namespace).Resource("pods").Name(pod).SubResource("exec").
		VersionedParams(&v1.PodExecOptions{Container: container, Command: argv, Stdout: true, Stderr: true}, scheme.ParameterCodec)
	// As kubectl: WebSockets, and SPDY where something on the way does not let them pass.
	sockets, err := remotecommand.NewWebSocketExecutor(config, "GET", request.URL().String())
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	spdy, err := remotecommand.NewSPDYExecutor(config, "POST", request.URL())
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	executor, err := remotecommand.NewFallbackExecutor(sockets, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	var stdout, stderr bytes.Buffer
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr})
	if text := strings.TrimSpace(stderr.String()); err != nil && text != "" {
		return nil, fmt.Errorf("%s in pod %s: %s", strings.Join(argv[:min(2, len(argv))], " "), pod, strings.TrimPrefix(text, "Error: "))
	}
	if err != nil {
		return nil, fmt.Errorf("run %s in pod %s: %w", strings.Join(argv[:min(2, len(argv))], " "), pod, err)
	}
	return stdout.Bytes(), nil
}
