// SPDX-License-Identifier: Apache-2.0

// Package serving serves the reference servers of services that are no part of Berth: where they
// listen, with which certificates, and their health. It knows no protocol.
package serving

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// Endpoint is where and how a server listens.
type Endpoint struct {
	// Listen is host:port or unix:///path.
	Listen string
	// CertFile and KeyFile are the server's certificate; without, it speaks
	// plaintext. ClientCAFile, where set, has the certificates that clients'
	// must be signed with.
	CertFile, KeyFile, ClientCAFile string
}

// Listener opens the endpoint.
func (e Endpoint) Listener(ctx context.Context) (net.Listener, error) {
	path, isSocket := strings.CutPrefix(e.Listen, "unix://")
	if !isSocket {
		return (&net.ListenConfig{}).Listen(ctx, "tcp", e.Listen)
	}
	// One that a crash left; anything but a socket is left alone.
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == fs.ModeSocket {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

func (e Endpoint) credentials() (credentials.TransportCredentials, error) {
	if e.CertFile == "" {
		return insecure.NewCredentials(), nil
	}
	certificate, err := tls.LoadX509KeyPair(e.CertFile, e.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("read the server's certificate: %w", err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate}}
	if e.ClientCAFile != "" {
		pem, err := os.ReadFile(e.ClientCAFile)
		if err != nil {
			return nil, fmt.Errorf("read the clients' CA certificates: %w", err)
		}
		config.ClientCAs = x509.NewCertPool()
		if !config.ClientCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read the clients' CA certificates: %s has none in PEM", e.ClientCAFile)
		}
		config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return credentials.NewTLS(config), nil
}

// Serve answers on a listener of the endpoint until ctx ends: service is an implementation of a
// service. Requests that are then in progress get no answer, and Berth repeats them: GracefulStop
// would wait for ever, as clients watch the server's health in a call without end.
func (e Endpoint) Serve(ctx context.Context, listener net.Listener, of *grpc.ServiceDesc, service any) error {
	credentials, err := e.credentials()
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	server := grpc.NewServer(grpc.Creds(credentials))
	server.RegisterService(of, service)
	state := health.NewServer()
	state.SetServingStatus(of.ServiceName, healthv1.HealthCheckResponse_SERVING)
	healthv1.RegisterHealthServer(server, state)
	stop := context.AfterFunc(ctx, server.Stop)
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}
