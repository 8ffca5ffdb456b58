// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"path"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Options configure the connection to a Service, as flags of a program or as fields of a
// configuration. The zero value means that there is no such service.
type Options struct {
	// Address of the service: host:port, any name that gRPC resolves such as
	// dns:///host:port, or unix:///path. Empty: there is no service.
	Address string `json:"address,omitempty"`

	// CAFile has the CA certificates, in PEM, that verify the service's certificate.
	// Empty: the system's CA certificates.
	CAFile string `json:"caFile,omitempty"`
	// CertFile and KeyFile have Berth's client certificate and key, in PEM. Empty: none.
	// All files are read again for every connection, so they can be replaced at any time.
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
	// ServerName is the name in the service's certificate. Empty: the host of
	// Address.
	ServerName string `json:"serverName,omitempty"`
	// Insecure connects in plaintext. A Unix socket does not need it.
	Insecure bool `json:"insecure,omitempty"`

	// Timeout is the time limit of one request. 0: the service's default.
	Timeout metav1.Duration `json:"timeout,omitzero"`
}

// Enabled reports whether there is a service.
func (o *Options) Enabled() bool { return o.Address != "" }

// AddFlags binds options to flags: --NOUN-address and so on.
func (s Service) AddFlags(flags *pflag.FlagSet, o *Options) {
	flags.StringVar(&o.Address, s.Noun+"-address", o.Address, "Address of the "+s.Name+": host:port or unix:///path; empty: none.")
	flags.StringVar(&o.CAFile, s.Noun+"-ca-file", o.CAFile, "CA certificates that verify the "+s.Noun+"'s certificate, in PEM; empty: the system's.")
	flags.StringVar(&o.CertFile, s.Noun+"-cert-file", o.CertFile, "Client certificate for the "+s.Noun+", in PEM; empty: none.")
	flags.StringVar(&o.KeyFile, s.Noun+"-key-file", o.KeyFile, "Key of --"+s.Noun+"-cert-file, in PEM.")
	flags.StringVar(&o.ServerName, s.Noun+"-server-name", o.ServerName, "Name in the "+s.Noun+"'s certificate; empty: the host of --"+s.Noun+"-address.")
	flags.BoolVar(&o.Insecure, s.Noun+"-insecure", o.Insecure, "Connect to the "+s.Noun+" in plaintext; not needed for a Unix socket.")
	flags.DurationVar(&o.Timeout.Duration, s.Noun+"-timeout", s.TimeLimit(o), "Time limit of one request to the "+s.Noun+".")
}

// TimeLimit returns the time limit of one request.
func (s Service) TimeLimit(o *Options) time.Duration {
	return cmp.Or(o.Timeout.Duration, s.Timeout)
}

// Validate returns the errors of the options, with the names of its fields in a configuration.
func (o *Options) Validate() error {
	var errs []error
	if !o.Enabled() {
		if *o != (Options{Timeout: o.Timeout}) {
			errs = append(errs, errors.New("address: needed with the other settings"))
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
			return fmt.Errorf("%q must name an absolute path, as in unix:///run/service.sock", address)
		}
		return nil
	}
	if strings.Contains(address, "://") {
		return nil // a name for a resolver, which gRPC checks
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
