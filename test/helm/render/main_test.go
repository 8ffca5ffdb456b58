// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/engine"
)

const manifests = "../../../manifests"

// kubectl applies the same objects that Helm installs.
func TestManifestsAreRendered(t *testing.T) {
	out := t.TempDir()
	if err := run(filepath.Join(manifests, "chart"), out, "", "", io.Discard); err != nil {
		t.Fatal(err)
	}
	files := 0
	err := filepath.WalkDir(out, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		files++
		name, err := filepath.Rel(out, path)
		if err != nil {
			return err
		}
		want, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if have, err := os.ReadFile(filepath.Join(manifests, name)); err != nil || !bytes.Equal(have, want) {
			t.Errorf("manifests/%s is not what the chart makes: run make generate (%v)", name, err)
		}
		return nil
	})
	if err != nil || files < 15 {
		t.Errorf("%d files, %v", files, err)
	}
}

// rendered returns what a file of values makes in the namespace network.
func rendered(t *testing.T, values string) (string, error) {
	t.Helper()
	var out strings.Builder
	err := run(filepath.Join(manifests, "chart"), "", values, "network", &out)
	return out.String(), err
}

// Values change what they say, and only that.
func TestValues(t *testing.T) {
	tests := []struct {
		file       string
		has, lacks []string
	}{
		{"", []string{"serviceAccount: {name: berth-scheduler, namespace: network}", "namespaces: [network]", "name: berth-viewer\n", "name: berth-view\n", "rbac.authorization.k8s.io/aggregate-to-view: \"true\"", "name: berth-operator\n", "name: berth-backup\n", "--bind-address=$(HOST_IP)", "helm.sh/resource-policy: keep", "kind: CustomResourceDefinition", "namespace: network"},
			[]string{"berth-console", "dnsendpoints", "name: berth-failover\n", "name: berth-failover,", "name: berth-speaker", "berth-system", "berth-cleanup", "openshift", "add: [NET_RAW]", "MutatingAdmissionPolicy", "weight: 1\n", "--logging-format", "seLinuxOptions", "appArmorProfile", "score:", "--overlay", "--network-policy", "hostPID", "--host-root", "device-plugins", "name: own-node.berth.dev", "monitoring.coreos.com", "kind: ConfigMap\nmetadata:\n  name: berth-dashboard", "name: berth-metrics-reader\n  namespace"}},
		{"monitoring", []string{"name: berth-agent\n  namespace: network\n  labels:", "kind: PrometheusRule", "interval: 30s", "{{ $labels.pool }}", "name: berth-dashboard-pools", "grafana_dashboard: \"1\""},
			[]string{"berth-system"}},
		{"console", []string{"kind: Service\nmetadata:\n  name: berth-console\n  namespace: network\n", "image: ghcr.io/berth-dev/berth-console:dev", "--secure-port=10268", "replicas: 1", "      port: 443\n",
			"resources: [floatingips, ippools, ipclaims, nodeassignments, bgppeers]\n    verbs: [list, watch]\n  - apiGroups: [\"\"]\n    resources: [pods, nodes]\n    verbs: [list, watch]\n  - apiGroups: [authentication.k8s.io]\n    resources: [tokenreviews]\n    verbs: [create]\n  - apiGroups: [authorization.k8s.io]\n    resources: [subjectaccessreviews]\n    verbs: [create]\n---",
			"kind: PodMonitor\nmetadata:\n  name: berth-console\n"},
			[]string{"--cluster-name", "--tls-cert-file", "--list-dir", "berth-console/lists", "berth-system", "priorityClassName: \n"}},
		{"failover", []string{"image: ghcr.io/berth-dev/berth-failover:dev", "--secure-port=10269", "replicas: 2", "name: berth-failover\n  namespace: kube-node-lease\n", "kind: PodMonitor\nmetadata:\n  name: berth-failover\n",
			"request.userInfo.username == 'system:serviceaccount:network:berth-failover'", "serviceAccount: {name: berth-failover, namespace: network}", "kind: PodDisruptionBudget\nmetadata:\n  name: berth-failover\n", "kind: Role\nmetadata:\n  name: berth-failover-operator\n", "is off only where the chart's failover.fencer is set"},
			[]string{"berth-system", "priorityClassName: \n", "--fencer"}},
		{"speaker", []string{"image: ghcr.io/berth-dev/berth-speaker:dev", "--bind-address=$(HOST_IP)\n            - --secure-port=10270", "secretName: berth-bgp-passwords, defaultMode: 0440, optional: true", "kind: PodMonitor\nmetadata:\n  name: berth-speaker\n", "maxUnavailable: 10%\n",
			"serviceAccount: {name: berth-speaker, namespace: network}", "name: berth-speaker\n    namespace: network\n", "resources: [bgppeers]\n    verbs: [list, watch]\n  - apiGroups: [\"\"]\n    resources: [nodes]\n    verbs: [list, watch]\n"},
			[]string{"berth-system", "priorityClassName: \n"}},
		{"speaker-groups", []string{"kind: DaemonSet\nmetadata:\n  name: berth-speaker-rack-1\n", "kind: DaemonSet\nmetadata:\n  name: berth-speaker-rack-2\n", "matchLabels:\n      app.kubernetes.io/name: berth-speaker\n      berth.dev/speaker-group: rack-1\n",
			"        berth.dev/speaker-group: rack-2\n", "nodeSelector:\n        fabric: bgp\n        node-restriction.kubernetes.io/rack: \"1\"\n", "secretName: bgp-rack-1,", "secretName: bgp-rack-2,"},
			[]string{"kind: DaemonSet\nmetadata:\n  name: berth-speaker\n", "secretName: berth-bgp-passwords"}},
		{"overlay", []string{"--overlay=host-gw", "name: berth-agent-overlay", "name: own-node.berth.dev", "path: /run/flannel"},
			[]string{"--overlay-floating-ips", "hostPID"}},
		{"host-root", []string{"--host-root=/host", "hostPID: true", "SYS_CHROOT]", "--bind-address=127.0.0.1", "host: 127.0.0.1",
			"--to=/var/lib/rancher/k3s/data/cni]", "--cni-bin-dir=/var/lib/rancher/k3s/data/cni", "--cni-conf-dir=/var/lib/rancher/k3s/agent/etc/cni/net.d"},
			[]string{"/opt/cni/bin", "path: /etc/cni/net.d", "=$(HOST_IP)", "kind: PodMonitor\nmetadata:\n  name: berth-agent\n"}},
		{"cleanup", []string{"name: berth-cleanup", "--cni-bin-dir=/usr/libexec/cni", "args:\n            - cleanup\n            - --root=/host\n            - --stay\n            - --cni-bin-dir=/usr/libexec/cni\n            - \"--cni-conf-name=10-berth.conflist\"\n", "                - \"--cni-conf-name=10-berth.conflist\"\n            periodSeconds", "berth.dev/clean: \"true\"", "name: berth-scheduler", "type: spc_t"},
			[]string{"--sysctl-root", "--galaxy-aliases"}},
		{"everything", []string{"registry.example.com/mirror/berth/berth-agent:v9.9.9", "registry.example.com/mirror/berth/berth-scheduler@sha256:0123", "imagePullPolicy: Always",
			"- name: mirror", "replicas: 3", "galaxyAliases: true", "--profiling=false", "memory: 8Gi", "--workers=4", "            - --names\n", "resources: [dnsendpoints]\n    verbs: [list, create, patch, delete]\n", "--host-port-range=30000-31000", "GOMEMLIMIT", "--network-policy-pods=All", "--overlay=vxlan", "--overlay-floating-ips",
			"kind: MutatingAdmissionPolicyBinding", "namespaceSelector:\n      matchLabels:\n        team: web\n", "--logging-format=json", "schedulerName: packed", "schedulerName: kube-scheduler\n", "- name: FloatingIP\n                weight: 7\n              - name: ImageLocality\n                weight: 3\n          #",
			"score:\n            disabled:\n              - name: TaintToleration\n", "scoringStrategy:\n                type: MostAllocated\n", "- tke.cloud.tencent.com/eni-ip\n                - example.com/seat\n", "kind: PodTopologySpreadArgs\n              defaultingType: List\n",
			"team: network", "team: addresses", "team: nodes", "priorityClassName: very-high", "priorityClassName: quite-high", "priorityClassName: highest", "mountPath: /etc/assigner", "mountPath: /etc/tls", "mountPath: /etc/floating", "{name: device-plugins, mountPath: /var/lib/kubelet/device-plugins}", "hostPath: {path: /var/lib/kubelet/device-plugins, type: Directory}", "secretName: controller-tls",
			"berth-failover@sha256:0123", "replicas: 3", "--v=5", "team: rescue", "priorityClassName: rather-high", "secretName: failover-kube", "mountPath: /etc/kube", "--kube-api-qps=300", "\"--fencer-address=fencer.kube-system.svc:9043\"\n", "\"--fencer-ca-file=/etc/kube/fencer/ca.crt\"\n", "\"--fencer-timeout=1m30s\"\n", "value: 400MiB", "memory: 450Mi", "zone: a\n", "key: rescue\n",
			"berth-speaker@sha256:fedc", "--v=6", "team: routes", "priorityClassName: fairly-high", "secretName: routers", "drop: [ALL]\n              add: [NET_RAW]\n", "--password-dir=/etc/routers", "value: 90MiB", "memory: 100Mi", "fabric: bgp\n", "key: rack\n", "key: routes\n", "maxUnavailable: 2\n",
			"berth-console@sha256:fedc", "--cluster-name=Port of Hamburg\"", "secret: {secretName: console-tls, defaultMode: 0440}", "--tls-cert-file=/etc/berth-console/tls/tls.crt", "--list-dir=/etc/berth-console/lists", "secret: {secretName: firewalls, defaultMode: 0440, optional: true}", "--bind-address=::", "memory: 320Mi", "value: 300MiB", "team: windows",
			"priorityClassName: rather-low", "kubernetes.io/arch: amd64", "topologyKey: quay", "key: berth\n", "--v=1", "topologyKey: zone", "topologyKey: rack", "key: type\n", "type: spc_t", "type: Unconfined",
			"appArmorProfile:\n          type: RuntimeDefault\n", "policyTypes: [Ingress, Egress]\n", "      from:\n        - ipBlock:\n            cidr: 192.0.2.0/24\n", "  egress:\n    - ports:\n      - port: 6443\n",
			"for: 20m", "max(berth_reclaim_oldest_pending_seconds) > 3600", "alert: BerthPodsWaitForAgents", "{{ $value }} nodes had",
			"release: prometheus", "interval: 1m30s", "grafana: \"yes\"", "maxUnavailable: 1", "--v=4", "--v=0", "--v=3", "berth.dev/config: "},
			[]string{"ghcr.io", "kind: FlowSchema", "name: berth-viewer", "name: berth-view\n", "alert: BerthPoolNearlyFull", "name: berth-forecast", "berth_reclaim_oldest_pending_seconds) > 600", "podAntiAffinity", "system-cluster-critical", "system-node-critical", "helm.sh/resource-policy", "control-plane\n          operator", "--v=2", "the chart's failover.fencer is set"}},
		{"openshift", []string{"kind: SecurityContextConstraints\nmetadata:\n  name: berth-agent\n", "allowHostPID: true\n", "SYS_ADMIN, SYS_CHROOT]\ndefaultAdd", "users: [\"system:serviceaccount:network:berth-agent\"]", "name: system:openshift:scc:nonroot-v2", "kind: SecurityContextConstraints\nmetadata:\n  name: berth-speaker\n", "runAsUser: {type: MustRunAs, uid: 65532}", "users: [\"system:serviceaccount:network:berth-speaker\"]"},
			[]string{"name: berth-uninstall"}},
		{"no-crds", []string{"name: berth-agent"}, []string{"CustomResourceDefinition\n", "helm.sh/resource-policy"}},
	}
	seen := map[string]bool{}
	for _, test := range tests {
		t.Run(test.file, func(t *testing.T) {
			file := ""
			if test.file != "" {
				file = filepath.Join(manifests, "chart/ci", test.file+".yaml")
			}
			seen[file] = true
			text, err := rendered(t, file)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range test.has {
				if !strings.Contains(text, want) {
					t.Errorf("no %q in it", want)
				}
			}
			for _, bad := range test.lacks {
				if strings.Contains(text, bad) {
					t.Errorf("%q in it", bad)
				}
			}
		})
	}
	files, err := filepath.Glob(filepath.Join(manifests, "chart/ci/*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if !seen[file] {
			t.Errorf("%s is not tested", file)
		}
	}
}

// Objects that Helm makes when it uninstalls are in no manifest, and have the values of the others.
func TestHooks(t *testing.T) {
	c, err := open(filepath.Join(manifests, "chart"))
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]map[string][]string{
		"": {
			"uninstall/check.yaml": {"helm.sh/hook: pre-delete\n", "image: ghcr.io/berth-dev/berth-controller:", "- --namespace=network\n            - --release=berth\n", "hostNetwork: true"},
			"uninstall/clean.yaml": {"helm.sh/hook: post-delete\n", "kind: DaemonSet", "name: berth-cleanup\n", "- --stay\n", "- --namespace=network\n"},
			"uninstall/rbac.yaml":  {"name: berth-uninstall\n  namespace: network\n"},
		},
		"openshift": {
			"uninstall/scc.yaml":   {"name: berth-uninstall\n", "users: [\"system:serviceaccount:network:berth-uninstall\"]", "helm.sh/hook: pre-delete,post-delete\n"},
			"uninstall/clean.yaml": {"serviceAccountName: berth-uninstall\n      priorityClassName: system-node-critical\n"},
		},
		"overlay": {"uninstall/check.yaml": {"- --overlay\n"}},
		"cleanup": {"uninstall/clean.yaml": {"--cni-bin-dir=/usr/libexec/cni", "--cni-conf-name=10-berth.conflist", "berth.dev/clean: \"true\""}},
		"everything": {
			"uninstall/check.yaml": {"image: registry.example.com/mirror/berth/berth-controller:v9.9.9", "- --force\n", "imagePullPolicy: Always", "- name: mirror"},
			"uninstall/clean.yaml": {"image: registry.example.com/mirror/berth/berth-agent:v9.9.9", "image: registry.example.com/mirror/berth/berth-controller:v9.9.9"},
		},
	} {
		values := map[string]any{}
		if file != "" {
			if values, err = readValues(filepath.Join(manifests, "chart/ci", file+".yaml")); err != nil {
				t.Fatal(err)
			}
		}
		files, err := render(c, "network", values)
		if err != nil {
			t.Fatal(err)
		}
		for name, texts := range want {
			for _, text := range texts {
				if !strings.Contains(files[name], text) {
					t.Errorf("values %q: no %q in %s:\n%s", file, text, name, files[name])
				}
			}
		}
	}
	if printed, err := rendered(t, ""); err != nil || strings.Contains(printed, "helm.sh/hook") {
		t.Errorf("hooks are among the manifests, %v", err)
	}
}

// helm lint --strict has nothing to say.
func TestLint(t *testing.T) {
	for _, message := range lint.RunAll(filepath.Join(manifests, "chart"), nil, "network").Messages {
		if message.Severity > support.InfoSev {
			t.Error(message)
		}
	}
}

// A wrong value is refused before anything is installed, by its name.
func TestWrongValues(t *testing.T) {
	for values, want := range map[string]string{
		"console: {replicas: 0}":                                                      "/console/replicas",
		"failover: {replicas: 0}":                                                     "/failover/replicas",
		"failover: {evict: true}":                                                     "evict",
		"failover: {fencer: {address: x, tls: y}}":                                    "tls",
		"failover: {fencer: {timeout: soon}}":                                         "/failover/fencer/timeout",
		"failover: {enabled: true, extraArgs: [--fencer-address=x]}":                  "failover.fencer",
		"{failover: {enabled: true}, metrics: {enabled: false}}":                      "metrics.enabled=true",
		"speaker: {maxUnavailable: 0}":                                                "/speaker/maxUnavailable",
		"speaker: {groups: [{name: a, passwordSecret: b, nodeSelector: {rack: c}}]}":  "node-restriction",
		"speaker: {passwordSecret: \"\"}":                                             "/speaker/passwordSecret",
		"console: {tls: {secret: x}}":                                                 "secret",
		"agnet: {mode: run}":                                                          "agnet",
		"agent: {mod: run}":                                                           "mod",
		"agent: {mode: remove}":                                                       "/agent/mode",
		"scheduler: {replicas: 0}":                                                    "/scheduler/replicas",
		"scheduler: {args: {galaxyAlias: true}}":                                      "galaxyAlias",
		"image: {registry: ghcr.io/berth-dev/}":                                       "/image/registry",
		"metrics: {monitors: {interval: often}}":                                      "/metrics/monitors/interval",
		"agent: {digest: sha256:12}":                                                  "/agent/digest",
		"controller: {extraArgs: [workers=4]}":                                        "/controller/extraArgs/0",
		"agent: {cniBinDir: opt/cni/bin}":                                             "/agent/cniBinDir",
		"agent: {tolerations: [{operator: Any}]}":                                     "/agent/tolerations/0/operator",
		"metrics: {rules: {enabled: true, alerts: {BerthPoolFul: {enabled: false}}}}": "there is no alert BerthPoolFul;",
		"metrics: {rules: {alerts: {BerthPoolFull: {severity: high}}}}":               "/metrics/rules/alerts/BerthPoolFull/severity",
		"logFormat: xml":                                                              "/logFormat",
		"scheduler: {names: []}":                                                      "/scheduler/names",
		"scheduler: {weights: {imageLocality: 1}}":                                    "imageLocality",
		"scheduler: {pluginArgs: {FloatingIP: {}}}":                                   "'FloatingIP'",
		"agent: {podLabels: {app.kubernetes.io/name: x}}":                             "'app.kubernetes.io/name'",
		"controller: {affinity: {podAntiaffinity: {}}}":                               "podAntiaffinity",
		"controller: {extraVolumeMounts: [{name: x}]}":                                "/controller/extraVolumeMounts/0",
		"agent: {appArmorProfile: {typ: Unconfined}}":                                 "typ",
		"scheduler: {topologySpreadConstraints: [{topologyKey: zone}]}":               "/scheduler/topologySpreadConstraints/0",
	} {
		file := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(file, []byte(values), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := rendered(t, file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want an error that names %s", values, err, want)
		}
	}
}

// The policy has the version that the API server serves; where it serves none, Helm says so before
// it changes anything.
func TestVersionOfPodDefaults(t *testing.T) {
	const kind = "/MutatingAdmissionPolicy"
	c, err := open(filepath.Join(manifests, "chart"))
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]any{"podDefaults": map[string]any{"enabled": true}}
	for served, want := range map[string]string{
		"v1.36.2":                              "admissionregistration.k8s.io/v1\n",
		"admissionregistration.k8s.io/v1":      "admissionregistration.k8s.io/v1\n",
		"admissionregistration.k8s.io/v1beta1": "admissionregistration.k8s.io/v1beta1\n",
		"apps/v1":                              "",
	} {
		capabilities := *common.DefaultCapabilities
		capabilities.APIVersions = common.VersionSet{served + kind}
		capabilities.KubeVersion = common.KubeVersion{Version: "v1.35.1", Major: "1", Minor: "35"}
		if strings.HasPrefix(served, "v1.36") {
			capabilities.KubeVersion = common.KubeVersion{Version: served, Major: "1", Minor: "36"}
		}
		all, err := util.ToRenderValues(c, values, common.ReleaseOptions{Name: "berth", Namespace: "network", IsInstall: true}, &capabilities)
		if err != nil {
			t.Fatal(err)
		}
		files, err := engine.Render(c, all)
		if want == "" {
			if err == nil || !strings.Contains(err.Error(), "podDefaults.enabled: this API server serves no MutatingAdmissionPolicy") {
				t.Errorf("%s is served: %v", served, err)
			}
			continue
		}
		if text := files["berth/templates/pod-defaults/policy.yaml"]; err != nil || strings.Count(text, "apiVersion: "+want) != 2 {
			t.Errorf("%s is served: %v\n%s", served, err, text)
		}
	}
}
