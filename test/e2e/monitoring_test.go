// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/monitoring"
	"github.com/berth-dev/berth/test/witness"
)

// component are the files of manifests/monitoring that its kustomization adds to an installation.
var component = []string{"account.yaml", "monitors.yaml", "rules.yaml", "dashboards.yaml"}

// rare are series that alerts and panels ask for, and that a cluster without faults does not have.
var rare = []string{`result="conflict"`, `result="error"`, `code!="0"`, `verdict="drop"`}

// unseen begin the names of metrics that need not be there: of the external assigner, the fencer,
// the console, berth-failover and berth-speaker, which the lab has not, what kube-scheduler
// measures for one pod in ten only, and pods that wait.
var unseen = []string{"berth_remote_", `up{job="berth-console"}`, `up{job="berth-failover"}`, "berth_failover_", `up{job="berth-speaker"}`, "berth_speaker_", "scheduler_plugin_execution_", "berth_scheduler_waiting_pods"}

// TestMonitoring: a Prometheus that scrapes as the monitors say finds all series that alerts and
// dashboards read, with the labels that they rely on, and tells of a full pool.
func TestMonitoring(t *testing.T) {
	network := shared.Cluster.Network()
	spec := v1alpha1.IPPoolSpec{
		Subnet: network.Floating.String(), Gateway: network.FloatingGateway().String(),
		Ranges: []string{"10.0.70.200-10.0.70.209"}, NodeSubnets: []string{network.Nodes.String()}, MaxPerNamespace: 20,
	}
	small := spec
	small.Ranges, small.MaxPerNamespace = []string{"10.0.70.210-10.0.70.211"}, 0
	s := newStageOf(t, spec, small)
	inBig, inSmall := annotated(v1alpha1.AnnotationPools, s.pools[0]), annotated(v1alpha1.AnnotationPools, s.pools[1])
	s.installMonitoring()
	p := s.prometheus()

	s.apply(fmt.Sprintf(`
apiVersion: berth.dev/v1alpha1
kind: IPClaim
metadata: {name: claim}
spec: {size: 1, preallocate: true, pools: [%s]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: policy}
spec: {podSelector: {}, ingress: [{ports: [{port: %s}]}]}
`, s.pools[0], witness.Port))
	s.deployment(s.pod("deployment", s.floating, inBig, retaining), 1, appsv1.DeploymentStrategy{})
	set := s.statefulSet(s.pod("set", s.floating, inBig, retaining), 1)
	s.start("single", s.floating, inBig)
	s.delete("single")
	s.kubectl("-n", s.name, "delete", "pod", "set-0", patiently)
	s.wait("set-0", successor(set[0]))
	s.rolledOut("deployment", 1)

	s.eventually("all series are there", p.seriesProblems)
	s.eventually("the claim has the namespace of its own", func() error {
		return p.has(fmt.Sprintf(`berth_claim_ready{namespace=%q, claim="claim"} == 1`, s.name))
	})
	s.eventually("each node has an agent", func() error {
		return p.has(fmt.Sprintf(`count(count by (node) (up{job="berth-agent", node=~"node.+"} == 1)) == %d`, len(s.Cluster.Nodes())))
	})
	s.eventually("no alert says that a program is missing", func() error {
		firing, err := p.query(`ALERTS{alertname=~"Berth(NoSchedulerLeads|NoControllerLeads|ReplicaDown|AgentDown|NodeCutOff)", alertstate="firing"}`)
		if err == nil && len(firing) > 0 {
			err = fmt.Errorf("firing: %v", firing)
		}
		return err
	})

	full := fmt.Sprintf(`ALERTS{alertname="BerthPoolFull", pool=%q, alertstate="firing", severity="warning"}`, s.pools[1])
	if err := p.has(full); err == nil {
		t.Error("an alert says that an empty pool is full")
	}
	s.start("full-1", s.floating, inSmall)
	s.start("full-2", s.floating, inSmall)
	s.create(s.pod("waits", s.floating, inSmall))
	s.eventually("an alert says that the pool is full", func() error { return p.has(full) })
	s.eventually("an alert says that a pod waits", func() error {
		return p.has(fmt.Sprintf(`ALERTS{alertname="BerthPoolExhausted", pool=%q, alertstate="firing", severity="critical"}`, s.pools[1]))
	})
	s.delete("full-1", "full-2", "waits")
	s.eventually("the alert ends", func() error {
		if err := p.has(full); err == nil {
			return errors.New("it fires")
		}
		return p.has(fmt.Sprintf(`berth_pool_addresses{pool=%q, state="free"} == 2`, s.pools[1]))
	})
}

// apply applies manifests in the stage's namespace.
func (s *stage) apply(text string) {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "objects.yaml")
	s.must(os.WriteFile(file, []byte(text), 0o600))
	s.kubectl("-n", s.name, "apply", "-f", file)
}

// installMonitoring applies the kinds of Prometheus' operator, and what is for it.
func (s *stage) installMonitoring() {
	s.t.Helper()
	root, err := deploy.Root()
	s.must(err)
	kinds, err := monitoring.OperatorKinds(s.ctx)
	s.must(err)
	dir := s.t.TempDir()
	var objects, names []string
	for _, kind := range kinds {
		text, err := kind.MarshalJSON()
		s.must(err)
		file := filepath.Join(dir, kind.GetName()+".json")
		s.must(os.WriteFile(file, text, 0o600))
		objects, names = append(objects, "-f", file), append(names, "crd/"+kind.GetName())
	}
	s.atEnd(func() { s.kubectl(append([]string{"delete", "--ignore-not-found"}, objects...)...) })
	s.kubectl(append([]string{"apply", "--server-side"}, objects...)...)
	s.kubectl(append([]string{"wait", "--for=condition=Established", patiently}, names...)...)
	var files []string
	for _, name := range component {
		files = append(files, "-f", filepath.Join(root, "manifests/monitoring", name))
	}
	s.atEnd(func() { s.kubectl(append([]string{"delete", "--ignore-not-found"}, files...)...) })
	s.kubectl(append([]string{"apply"}, files...)...)
}

// prometheus runs on the router, from which pods and nodes can be reached, until the test ends.
type prometheus struct {
	*stage
	client *http.Client
}

// prometheus starts Prometheus with what the operator would make of the monitors and alerts that
// the API server has; but it scrapes each second, and alerts fire at once.
func (s *stage) prometheus() *prometheus {
	s.t.Helper()
	bin, err := monitoring.Prometheus(s.ctx)
	s.must(err)
	dir := s.t.TempDir()
	s.must(os.Chmod(dir, 0o755))
	scrape := monitoring.Scrape{PodsFile: filepath.Join(dir, "pods.json"), TokenFile: filepath.Join(dir, "token"), Interval: "1s"}
	pods, err := s.Client.CoreV1().Pods(deploy.Namespace).List(s.ctx, metav1.ListOptions{})
	s.must(err)
	text, err := monitoring.Pods(pods.Items)
	s.must(err)
	s.must(os.WriteFile(scrape.PodsFile, text, 0o600))
	s.eventually("the token is there", func() error {
		token, err := base64.StdEncoding.DecodeString(s.kubectl("-n", deploy.Namespace, "get", "secret", "berth-metrics-reader", "-o", "jsonpath={.data.token}"))
		if err == nil && len(token) == 0 {
			err = errors.New("the Secret is empty")
		}
		return errors.Join(err, os.WriteFile(scrape.TokenFile, token, 0o600))
	})
	var configs []any
	monitors := s.objects("podmonitors")
	if len(monitors) != 3 {
		s.t.Fatalf("%d PodMonitors, want 3", len(monitors))
	}
	for _, monitor := range monitors {
		config, err := scrape.Config(&monitor)
		s.must(err)
		// As where one Prometheus has several clusters.
		config["relabel_configs"] = append(config["relabel_configs"].([]map[string]any), map[string]any{"target_label": "cluster", "replacement": "lab"})
		configs = append(configs, config)
	}
	rules := s.objects("prometheusrules")[0].Object["spec"]
	for _, group := range rules.(map[string]any)["groups"].([]any) {
		delete(group.(map[string]any), "interval")
		for _, rule := range group.(map[string]any)["rules"].([]any) {
			delete(rule.(map[string]any), "for")
		}
	}
	for name, content := range map[string]any{
		"rules.yaml": rules,
		"prometheus.yaml": map[string]any{
			"global":     map[string]any{"scrape_interval": "1s", "evaluation_interval": "1s"},
			"rule_files": []string{filepath.Join(dir, "rules.yaml")}, "scrape_configs": configs,
		},
	} {
		text, err := yaml.Marshal(content)
		s.must(err)
		s.must(os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}

	const listen = "127.0.0.1:9090"
	router := s.Cluster.Router()
	ctx, cancel := context.WithCancel(s.ctx)
	command := router.Command(ctx, filepath.Join(bin, "prometheus"), "--config.file="+filepath.Join(dir, "prometheus.yaml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+listen, "--log.level=warn")
	var log bytes.Buffer
	command.Stdout, command.Stderr = &log, &log
	s.must(command.Start())
	s.t.Cleanup(func() {
		cancel()
		err := command.Wait()
		if s.t.Failed() {
			s.t.Logf("Prometheus: %v\n%s", err, log.String())
		}
	})
	return &prometheus{stage: s, client: &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return router.Dial(ctx, network, listen)
		},
	}}}
}

// objects returns all objects of a kind in the namespace of Berth.
func (s *stage) objects(kind string) []unstructured.Unstructured {
	s.t.Helper()
	list := &unstructured.UnstructuredList{}
	s.must(list.UnmarshalJSON([]byte(s.kubectl("-n", deploy.Namespace, "get", kind, "-o", "json"))))
	if len(list.Items) == 0 {
		s.t.Fatalf("there are no %s", kind)
	}
	return list.Items
}

// query returns the labels of the series that an expression has now.
func (p *prometheus) query(expr string) ([]map[string]string, error) {
	response, err := p.client.PostForm("http://prometheus/api/v1/query", url.Values{"query": {expr}})
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var answer struct {
		Error string
		Data  struct {
			ResultType string
			Result     json.RawMessage
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return nil, fmt.Errorf("%s: %s: %w", expr, response.Status, err)
	}
	if answer.Error != "" {
		return nil, fmt.Errorf("%s: %s", expr, answer.Error)
	}
	if answer.Data.ResultType != "vector" {
		return nil, fmt.Errorf("%s: the result is a %s", expr, answer.Data.ResultType)
	}
	var series []struct{ Metric map[string]string }
	if err := json.Unmarshal(answer.Data.Result, &series); err != nil {
		return nil, err
	}
	var all []map[string]string
	for _, one := range series {
		all = append(all, one.Metric)
	}
	return all, nil
}

// has says that an expression has a result.
func (p *prometheus) has(expr string) error {
	found, err := p.query(expr)
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("nothing is %s", expr)
	}
	return err
}

// seriesProblems says of all expressions of alerts and dashboards what Prometheus has no series
// for.
func (p *prometheus) seriesProblems() error {
	expressions, err := monitoring.Expressions()
	if err != nil {
		return err
	}
	var problems []error
	for _, e := range expressions {
		for _, err := range p.expressionProblems(e) {
			problems = append(problems, fmt.Errorf("%s: %w", e.Where, err))
		}
	}
	if len(expressions) < 80 {
		problems = append(problems, fmt.Errorf("only %d expressions", len(expressions)))
	}
	return errors.Join(problems...)
}

func (p *prometheus) expressionProblems(e monitoring.Expression) []error {
	found, err := p.query(e.Text)
	if err != nil {
		return []error{err}
	}
	if slices.ContainsFunc(unseen, func(name string) bool { return strings.Contains(e.Text, name) }) {
		return nil
	}
	var problems []error
	usual := true
	selectors, err := monitoring.Selectors(e.Text)
	if err != nil {
		return []error{err}
	}
	for _, s := range selectors {
		s.LabelMatchers = slices.DeleteFunc(s.LabelMatchers, func(m *labels.Matcher) bool {
			if slices.Contains(rare, m.String()) {
				usual = false
				return true
			}
			return false
		})
		if err := p.has(s.String()); err != nil {
			problems = append(problems, err)
		}
	}
	// Panels show something; alerts do not, and a subquery needs its quarters of an hour.
	panel := strings.Contains(e.Where, ".json")
	if panel && usual && len(found) == 0 && !strings.Contains(e.Text, "[1d:") {
		problems = append(problems, fmt.Errorf("no result of %s", e.Text))
	}
	return append(problems, p.labelProblems(e.Text)...)
}

// labelProblems names labels that an expression groups by, and that none of its series has.
func (p *prometheus) labelProblems(expr string) []error {
	parsed, err := parser.ParseExpr(expr)
	if err != nil {
		return []error{err}
	}
	var problems []error
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		aggregation, ok := node.(*parser.AggregateExpr)
		if !ok {
			return nil
		}
		below, err := monitoring.Selectors(aggregation.Expr.String())
		if err != nil {
			return err
		}
		for _, s := range below {
			for _, label := range aggregation.Grouping {
				if err := p.has(fmt.Sprintf(`{__name__=%q, %s!=""}`, s.Name, label)); err != nil {
					problems = append(problems, err)
				}
			}
		}
		return nil
	})
	return problems
}
