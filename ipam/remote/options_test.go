// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var assigner = Service{Name: "external assigner", Noun: "assigner", GRPC: "berth.assigner.v1.Assigner", Timeout: 10 * time.Second}

func TestValidate(t *testing.T) {
	for _, test := range []struct {
		name    string
		options Options
		want    string // part of the error; empty: none
	}{
		{"none", Options{}, ""},
		{"none, with the flag's default", Options{Timeout: metav1.Duration{Duration: assigner.Timeout}}, ""},
		{"TLS with the system's certificates", Options{Address: "assigner.example.org:443"}, ""},
		{"all of TLS", Options{Address: "10.0.0.1:9042", CAFile: "ca", CertFile: "cert", KeyFile: "key", ServerName: "assigner"}, ""},
		{"resolver", Options{Address: "dns:///assigner.kube-system:9042"}, ""},
		{"socket", Options{Address: "unix:///run/assigner.sock"}, ""},
		{"socket in gRPC's short form", Options{Address: "unix:/run/assigner.sock"}, ""},
		{"plaintext", Options{Address: "[2001:db8::1]:9042", Insecure: true}, ""},
		{"settings without an address", Options{CAFile: "ca"}, "address: needed"},
		{"no port", Options{Address: "assigner"}, `"assigner" must be host:port`},
		{"no host", Options{Address: ":9042"}, "must be host:port"},
		{"relative socket", Options{Address: "unix:assigner.sock"}, "absolute path"},
		{"certificate without key", Options{Address: "a:1", CertFile: "cert"}, "certFile and keyFile"},
		{"key without certificate", Options{Address: "a:1", KeyFile: "key"}, "certFile and keyFile"},
		{"plaintext with TLS files", Options{Address: "a:1", Insecure: true, CAFile: "ca"}, "insecure: cannot be combined with"},
		{"negative timeout", Options{Address: "a:1", Timeout: metav1.Duration{Duration: -1}}, "timeout: -1ns is negative"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := test.options.Validate()
			if test.want == "" && err != nil {
				t.Errorf("got %v, want none", err)
			}
			if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// Plaintext leaves the machine only if somebody said so.
func TestPlaintext(t *testing.T) {
	for _, test := range []struct {
		options Options
		want    bool
	}{
		{Options{Address: "a:1"}, false},
		{Options{Address: "dns:///a:1"}, false},
		{Options{Address: "a:1", Insecure: true}, true},
		{Options{Address: "unix:///run/a.sock"}, true},
		{Options{Address: "unix:///run/a.sock", CAFile: "ca"}, false},
		{Options{Address: "unix-abstract:a"}, false},
	} {
		if got := test.options.plaintext(); got != test.want {
			t.Errorf("%+v: got %v, want %v", test.options, got, test.want)
		}
	}
}

// Flags and args say the same.
func TestFlagsAndArgs(t *testing.T) {
	var flags, args Options
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	assigner.AddFlags(set, &flags)
	if flags.Timeout.Duration != assigner.Timeout || flags.Enabled() {
		t.Errorf("without flags: %+v", flags)
	}
	if err := set.Parse([]string{
		"--assigner-address=a:1", "--assigner-ca-file=ca", "--assigner-cert-file=cert", "--assigner-key-file=key",
		"--assigner-server-name=name", "--assigner-insecure", "--assigner-timeout=3s",
	}); err != nil {
		t.Fatal(err)
	}
	text := `{"address": "a:1", "caFile": "ca", "certFile": "cert", "keyFile": "key", "serverName": "name", "insecure": true, "timeout": "3s"}`
	if err := json.Unmarshal([]byte(text), &args); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(args, flags); diff != "" {
		t.Errorf("args (-) and flags (+) differ:\n%s", diff)
	}
	for options, want := range map[*Options]time.Duration{&args: 3 * time.Second, {}: assigner.Timeout} {
		if got := assigner.TimeLimit(options); got != want {
			t.Errorf("time limit %v, want %v", got, want)
		}
	}
}
