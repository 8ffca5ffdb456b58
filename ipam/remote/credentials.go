// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// transport returns the credentials of connections. It fails if a file cannot be read, so mistakes
// are found at start.
func transport(options *Options) (credentials.TransportCredentials, error) {
	if options.plaintext() {
		return insecure.NewCredentials(), nil
	}
	config, err := tlsConfig(options)
	if err != nil {
		return nil, err
	}
	return &fileCredentials{TransportCredentials: credentials.NewTLS(config), options: options}, nil
}

// fileCredentials read their files for every handshake, because certificates may be
// replaced while the process runs.
type fileCredentials struct {
	credentials.TransportCredentials // from the files at start

	options *Options
}

func (c *fileCredentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config, err := tlsConfig(c.options)
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(config).ClientHandshake(ctx, authority, conn)
}

func (c *fileCredentials) Clone() credentials.TransportCredentials {
	return &fileCredentials{TransportCredentials: c.TransportCredentials.Clone(), options: c.options}
}

func tlsConfig(options *Options) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: options.ServerName}
	if options.CAFile != "" {
		pem, err := os.ReadFile(options.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read the CA certificates: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read the CA certificates: %s has none in PEM", options.CAFile)
		}
	}
	if options.CertFile != "" {
		certificate, err := tls.LoadX509KeyPair(options.CertFile, options.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("read the client certificate: %w", err)
		}
		config.Certificates = []tls.Certificate{certificate}
	}
	return config, nil
}
