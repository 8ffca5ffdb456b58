// SPDX-License-Identifier: Apache-2.0

package assigner

import (
	"errors"
	"fmt"
	"net"
	"path"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DefaultTimeout is the default time limit of one request.
const DefaultTimeout = 10 * time.Second

// Options configure the connection to the external assigner, as flags of the controller
// and args of the scheduler's plugin. The zero value means that there is no assigner.
type Options struct {
	// Address of the assigner: host:port, any name that gRPC resolves such as
	// dns:///host:port, or unix:///path. Empty: there is no assigner.
	Address string `json:"address,omitempty"`

	// CAFile has the CA certificates, in PEM, that verify the assigner's certificate.
	// Empty: the system's CA certificates.
	CAFile string `json:"caFile,omitempty"`
	// CertFile and KeyFile have Berth's client certificate and key, in PEM. Empty: none.
	// All files are read again for every connection, so they can be replaced at any time.
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
	// ServerName is the name in the assigner's certificate. Empty: the host of
	// Address.
	ServerName string `json:"serverName,omitempty"`
	// Insecure connects in plaintext. A Unix socket does not need it.
	Insecure bool `json:"insecure,omitempty"`

	// Timeout is the time limit of one request. 0: DefaultTimeout. A request that fails
	// temporarily is repeated, for up to longest in total.
	Timeout metav1.Duration `json:"timeout,omitzero"`
}

// Enabled reports whether there is an assigner.
func (o *Options) Enabled() bool { return o.Address != "" }

// longest returns the maximum duration of Attach or Detach, repetitions included.
func (o *Options) longest() time.Duration { return 3 * o.timeout() }

func (o *Options) timeout() time.Duration {
	if o.Timeout.Duration == 0 {
		return DefaultTimeout
	}
	return o.Timeout.Duration
}

// AddFlags binds the options to --assigner-… flags.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	if o.Timeout.Duration == 0 {
		o.Timeout.Duration = DefaultTimeout
	}
	flags.StringVar(&o.Address, "assigner-address", o.Address, "Address of the external assigner: host:port or unix:///path; empty: none.")
	flags.StringVar(&o.CAFile, "assigner-ca-file", o.CAFile, "CA certificates that verify the assigner's certificate, in PEM; empty: the system's.")
	flags.StringVar(&o.CertFile, "assigner-cert-file", o.CertFile, "Client certificate for the assigner, in PEM; empty: none.")
	flags.StringVar(&o.KeyFile, "assigner-key-file", o.KeyFile, "Key of --assigner-cert-file, in PEM.")
	flags.StringVar(&o.ServerName, "assigner-server-name", o.ServerName, "Name in the assigner's certificate; empty: the host of --assigner-address.")
	flags.BoolVar(&o.Insecure, "assigner-insecure", o.Insecure, "Connect to the assigner in plaintext; not needed for a Unix socket.")
	flags.DurationVar(&o.Timeout.Duration, "assigner-timeout", o.Timeout.Duration, "Time limit of one request to the assigner.")
}

// Validate returns the errors of the options, with the names of the plugin's args.
func (o *Options) Validate() error {
	var errs []error
	if !o.Enabled() {
		if *o != (Options{Timeout: o.Timeout}) {
			errs = append(errs, errors.New("address: needed with the other settings of the assigner"))
		}
		return errors.Join(errs...)
	}
	if err := checkAddress(o.Address); err != nil {
		errs = append(errs, fmt.Errorf("address: %w", err))
	}
	if (o.CertFile == "") != (o.KeyFile == "") {
		errs = append(errs, errors.New("certFile and keyFile: set both or neither"))
	}
	if o.Insecure && o.namesTLS() {
		errs = append(errs, errors.New("insecure: cannot be combined with caFile, certFile, keyFile and serverName"))
	}
	if o.Timeout.Duration < 0 {
		errs = append(errs, fmt.Errorf("timeout: %v is negative", o.Timeout.Duration))
	}
	return errors.Join(errs...)
}

func (o *Options) namesTLS() bool {
	return o.CAFile != "" || o.CertFile != "" || o.KeyFile != "" || o.ServerName != ""
}

// plaintext reports whether the connection has no TLS: with Insecure, and on a Unix socket
// without TLS options, because file permissions protect the socket.
func (o *Options) plaintext() bool {
	_, isSocket := socketPath(o.Address)
	return o.Insecure || isSocket && !o.namesTLS()
}

func checkAddress(address string) error {
	if socket, ok := socketPath(address); ok {
		if !path.IsAbs(socket) {
			return fmt.Errorf("%q must name an absolute path, as in unix:///run/assigner.sock", address)
		}
		return nil
	}
	if strings.Contains(address, "://") {
		return nil // a resolver's name, which gRPC checks
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || port == "" {
		return fmt.Errorf("%q must be host:port or unix:///path", address)
	}
	return nil
}

// socketPath returns the path of a unix:///path or unix:/path address.
func socketPath(address string) (string, bool) {
	rest, ok := strings.CutPrefix(address, "unix:")
	if !ok {
		return "", false
	}
	return strings.TrimPrefix(rest, "//"), true
}
