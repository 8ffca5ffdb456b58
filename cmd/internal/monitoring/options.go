// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/spf13/pflag"
)

// Options are the address and the certificate of a Server. The flags have the names of
// kube-scheduler's flags.
type Options struct {
	// BindAddress is an IP address of the host; 0.0.0.0 or ::, all of them.
	BindAddress string
	// SecurePort is the port; 0 serves nothing.
	SecurePort int
	// CertFile and KeyFile have the certificate and its key, in PEM. They are
	// read again for every connection, so they can be replaced at any time. Both
	// empty: the program creates a self-signed certificate.
	CertFile, KeyFile string
}

// AddFlags binds the options to flags. Their values are the defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.BindAddress, "bind-address", o.BindAddress, "IP address that serves /healthz, /readyz and /metrics over HTTPS; 0.0.0.0 or :: for all.")
	flags.IntVar(&o.SecurePort, "secure-port", o.SecurePort, "Port of --bind-address; 0 serves nothing.")
	flags.StringVar(&o.CertFile, "tls-cert-file", o.CertFile, "File with the certificate for HTTPS, in PEM; read again when it changes. Empty: a self-signed one.")
	flags.StringVar(&o.KeyFile, "tls-private-key-file", o.KeyFile, "File with the private key of --tls-cert-file, in PEM.")
}

// Validate returns the errors of the options, by flag.
func (o *Options) Validate() error {
	var errs []error
	if o.SecurePort < 0 || o.SecurePort > 65535 {
		errs = append(errs, fmt.Errorf("--secure-port: %d is not between 0 and 65535", o.SecurePort))
	}
	if _, err := netip.ParseAddr(o.BindAddress); err != nil {
		errs = append(errs, fmt.Errorf("--bind-address: %w", err))
	}
	if (o.CertFile == "") != (o.KeyFile == "") {
		errs = append(errs, errors.New("--tls-cert-file and --tls-private-key-file: set both or neither"))
	}
	return errors.Join(errs...)
}
