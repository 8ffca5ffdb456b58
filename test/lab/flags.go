// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// auditPolicy logs who did what to what, without contents: all requests for
// Berth's objects, and writes to pods (also binding and status) and nodes.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  resources: [{group: berth.dev}]
- level: Metadata
  verbs: [create, update, patch, delete, deletecollection]
  resources: [{group: "", resources: [pods, pods/binding, pods/status, nodes]}]
- level: None
`

// controlFlags has everything that the command lines of the control plane depend on.
type controlFlags struct {
	dir       string // keys, data, audit log
	bind      netip.Addr
	advertise netip.Addr // the zero Addr: nobody, no kubernetes Service
	apiPort   int
	etcdPorts [2]int // clients, peers
	services  netip.Prefix
	nodes     bool // a cluster with kubelets
	audit     bool
	accounts  bool // ServiceAccounts exist, for kube-controller-manager runs
	evict     time.Duration

	apiExtra, controllerExtra []string
}

func (f controlFlags) file(name string) string { return filepath.Join(f.dir, name) }

func (f controlFlags) etcdURL(i int) string {
	return fmt.Sprintf("http://127.0.0.1:%d", f.etcdPorts[i])
}

// etcd returns etcd's arguments. Its data need not outlive a power loss.
func (f controlFlags) etcd() []string {
	return []string{
		"--data-dir=" + f.file("etcd"),
		"--unsafe-no-fsync",
		"--log-level=warn",
		"--listen-client-urls=" + f.etcdURL(0),
		"--advertise-client-urls=" + f.etcdURL(0),
		"--listen-peer-urls=" + f.etcdURL(1),
		"--initial-advertise-peer-urls=" + f.etcdURL(1),
		"--initial-cluster=default=" + f.etcdURL(1),
	}
}

// apiServer returns kube-apiserver's arguments.
func (f controlFlags) apiServer() []string {
	args := []string{
		"--etcd-servers=" + f.etcdURL(0),
		"--bind-address=" + f.bind.String(),
		fmt.Sprintf("--secure-port=%d", f.apiPort),
		"--tls-cert-file=" + f.file("apiserver.crt"),
		"--tls-private-key-file=" + f.file("apiserver.key"),
		"--client-ca-file=" + f.file("ca.crt"),
		"--token-auth-file=" + f.file("tokens.csv"),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--service-cluster-ip-range=" + f.services.String(),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + f.file("sa.key"),
		"--service-account-signing-key-file=" + f.file("sa.key"),
		"--allow-privileged",
		"--max-requests-inflight=3000",
		"--max-mutating-requests-inflight=2000",
		// Names of nodes do not resolve.
		"--kubelet-preferred-address-types=InternalIP",
	}
	if f.advertise.IsValid() {
		args = append(args, "--advertise-address="+f.advertise.String())
	} else {
		// A loopback address is no valid endpoint.
		args = append(args, "--endpoint-reconciler-type=none")
	}
	if f.nodes {
		args = append(args,
			"--kubelet-certificate-authority="+f.file("ca.crt"),
			"--kubelet-client-certificate="+f.file("apiserver.crt"),
			"--kubelet-client-key="+f.file("apiserver.key"))
	}
	if !f.accounts {
		// Nobody makes the "default" ServiceAccounts that it asks for.
		args = append(args, "--disable-admission-plugins=ServiceAccount")
	}
	if f.audit {
		args = append(args, "--audit-policy-file="+f.file("audit-policy.yaml"), "--audit-log-path="+f.file("audit.log"))
	}
	if f.evict > 0 {
		s := int(f.evict.Seconds())
		args = append(args,
			fmt.Sprintf("--default-not-ready-toleration-seconds=%d", s),
			fmt.Sprintf("--default-unreachable-toleration-seconds=%d", s))
	}
	return append(args, f.apiExtra...)
}

// Kubelet looks every nodeStatusPeriod whether its status has changed, and
// without a change reports as rarely as everywhere: each report is news for all
// who watch nodes. It renews its lease every quarter of nodeLease, and is
// NotReady when nothing came for nodeGrace: five renewals, so that a busy
// machine does not lose nodes.
const (
	nodeStatusPeriod = 2 * time.Second
	nodeLease        = 8 * time.Second
	nodeGrace        = 10 * time.Second
)

// controllerManager returns kube-controller-manager's arguments.
func (f controlFlags) controllerManager() []string {
	args := append(f.component("controller-manager"),
		"--use-service-account-credentials",
		"--service-account-private-key-file="+f.file("sa.key"),
		"--root-ca-file="+f.file("ca.crt"),
		"--cluster-signing-cert-file="+f.file("ca.crt"),
		"--cluster-signing-key-file="+f.file("ca.key"),
		"--allocate-node-cidrs=false",
		"--node-monitor-period=1s",
		"--node-monitor-grace-period="+nodeGrace.String())
	return append(args, f.controllerExtra...)
}

// scheduler returns kube-scheduler's arguments.
func (f controlFlags) scheduler() []string { return f.component("scheduler") }

// component returns the arguments that every client program takes. None of
// them serves anything: ports of several labs could clash.
func (f controlFlags) component(name string) []string {
	return []string{
		"--kubeconfig=" + f.file(name+".kubeconfig"),
		"--leader-elect=false",
		"--secure-port=0",
		"--kube-api-qps=200",
		"--kube-api-burst=400",
	}
}

// tokens is the API server's token file with one administrator.
func tokens(admin string) string { return admin + `,admin,admin,"system:masters"` + "\n" }

func base64Of(b []byte) string { return base64.StdEncoding.EncodeToString(b) }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// lines joins lines to a text.
func lines(l ...string) string { return strings.Join(l, "\n") + "\n" }
