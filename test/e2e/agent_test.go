// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/witness"
)

// The kubelet's reasons of events for a pod that gets no network: its sandbox was tried,
// or CNI's STATUS had told already that there is no point.
const (
	sandboxFailed   = "FailedCreatePodSandBox"
	networkNotReady = "NetworkNotReady"
)

// failsWith waits until the pod is said to get no network, with a message that
// has all of the texts, and returns it.
func (s *stage) failsWith(pod *v1.Pod, texts ...string) string {
	s.t.Helper()
	event, err := s.Event(s.ctx, pod, func(event *v1.Event) bool {
		if event.Reason != sandboxFailed && event.Reason != networkNotReady {
			return false
		}
		for _, text := range texts {
			if !strings.Contains(event.Message, text) {
				s.t.Logf("%s: event without %q: %s", pod.Name, text, event.Message)
				return false
			}
		}
		return true
	})
	if err != nil {
		s.t.Fatalf("no event of %s has %q: %v", pod.Name, texts, err)
	}
	return event.Message
}

// TestAgentDown: without agents running pods keep their network, new ones wait and say why, those
// with a floating IP without a node, deleted ones wait too; when the agents are back all goes on by
// itself.
func TestAgentDown(t *testing.T) {
	s := newStage(t, "10.0.70.55-10.0.70.59")
	running := s.start("running", s.floating)
	leaving := s.start("leaving", s.floating)
	tr, since := s.ask(running), s.readySince()

	s.atEnd(s.agentsBack)
	s.kubectl("-n", deploy.Namespace, "patch", "daemonset", "berth-agent", "-p", `{"spec":{"template":{"spec":{"nodeSelector":{"berth.dev/no-such-node":""}}}}}`)
	s.kubectl("-n", deploy.Namespace, "wait", "--for=delete", "pod", "-l", deploy.AgentLabels, patiently)
	waiting, plain := s.create(s.pod("waiting", s.floating)), s.create(s.pod("plain"))
	s.kubectl("-n", s.name, "delete", "pod", leaving.Name, "--wait=false")
	t.Log(s.failsWith(plain, "Berth agent", "does not answer", api.SocketPath, "kubectl get pods -A"))
	// No node gets a pod with a floating IP.
	event, err := s.Event(s.ctx, waiting, func(event *v1.Event) bool {
		return event.Reason == "FailedScheduling" && strings.Contains(event.Message, "no Berth agent is ready")
	})
	s.must(err)
	t.Log(event.Message)
	now, err := s.Client.CoreV1().Pods(s.name).Get(s.ctx, waiting.Name, metav1.GetOptions{})
	s.must(err)
	if now.Spec.NodeName != "" {
		t.Errorf("the pod with a floating IP is on node %s, which has no agent", now.Spec.NodeName)
	}
	s.expectUnbroken(tr, "the absence of all agents")

	tr = s.ask(running)
	s.agentsBack()
	s.answers(s.ready(waiting.Name))
	s.ready(plain.Name)
	s.agree() // which "leaving" has no part in any more
	s.expectUnbroken(tr, "the return of the agents")
	s.stayedReady(since)
}

// freshAgents replaces the agents' pods, so that none waits longer and longer
// for its next start.
func (s *stage) freshAgents() {
	s.t.Helper()
	s.kubectl("-n", deploy.Namespace, "delete", "pod", "-l", deploy.AgentLabels, "--wait=true", patiently)
	s.settled()
}

func (s *stage) agentsBack() {
	s.t.Helper()
	s.kubectl("-n", deploy.Namespace, "patch", "daemonset", "berth-agent", "--type=merge", "-p", `{"spec":{"template":{"spec":{"nodeSelector":null}}}}`)
	s.settled()
}

// TestMissingPermission: an agent that may not read FloatingIPs says so in the
// pod's events, and goes on when it may.
func TestMissingPermission(t *testing.T) {
	s := newStage(t, "10.0.70.60-10.0.70.64")
	running := s.start("running", s.floating)
	tr, since := s.ask(running), s.readySince()
	allowed := s.kubectl("get", "clusterrole", "berth-agent", "-o", "jsonpath={.rules}")
	setRules := func(rules string) {
		s.kubectl("patch", "clusterrole", "berth-agent", "--type=merge", "-p", `{"rules":`+rules+`}`)
	}
	s.atEnd(func() { setRules(allowed) })
	setRules(`[{"apiGroups":[""],"resources":["pods"],"verbs":["get","list","watch"]}]`)
	waiting := s.create(s.pod("waiting", s.floating))
	t.Log(s.failsWith(waiting, "forbidden", "floatingips", "system:serviceaccount:berth-system:berth-agent"))
	// Agents that start anew, and do not learn of the node's pods.
	setRules(`[]`)
	s.kubectl("-n", deploy.Namespace, "delete", "pod", "-l", deploy.AgentLabels, "--wait=true", patiently)
	t.Log(s.failsWith(s.create(s.pod("plain")), "forbidden", `cannot get resource "pods"`))
	setRules(allowed)
	s.answers(s.ready(waiting.Name))
	s.ready("plain")
	s.settled()
	s.agree()
	s.expectUnbroken(tr, "missing permissions")
	s.stayedReady(since)
}

// TestAgentUpgrade: the agents are replaced one after the other. No request
// fails, connections that are open stay so, a download goes on, pods that start
// meanwhile do start, kube-proxy's rules stay, and no node is not Ready in
// between: its pods would leave their Services.
func TestAgentUpgrade(t *testing.T) {
	s := newStage(t, "10.0.70.83-10.0.70.92")
	s.installFailover("")
	var pods []*v1.Pod
	for _, node := range s.Cluster.Nodes() {
		pods = append(pods, s.start("web-on-"+node.Name(), s.floating, on(node.Name())))
	}
	held := s.steadily(pods[0], "/", 50*time.Millisecond)
	// At a rate that leaves the machine time for the upgrade, which the agent limits.
	files := s.start("files", s.floating, on("node2"), annotated("kubernetes.io/egress-bandwidth", "100M"), func(pod *v1.Pod) {
		c := &pod.Spec.Containers[0]
		c.Args, c.Env = []string{"test-webserver", "--port=" + witness.Port}, nil
	})
	download := s.steadily(files, "/agnhost", 0)
	rules := s.kubeProxyRules()
	tr, before, answers := s.ask(pods...), s.readySince(), s.askWho(pods...)
	s.kubectl("-n", deploy.Namespace, "rollout", "restart", "daemonset/berth-agent")
	for _, node := range s.Cluster.Nodes() {
		s.create(s.pod("new-on-"+node.Name(), s.floating, on(node.Name())))
	}
	s.settled()
	for _, node := range s.Cluster.Nodes() {
		s.answers(s.ready("new-on-" + node.Name()))
	}
	download.moves()
	s.expectUnbroken(tr, "the replacement of all agents")
	s.expectOwnNodes(answers, "the replacement of all agents", pods...)
	s.expectSteady("the replacement of all agents", held, download)
	s.delete(files.Name) // its limit has a link of its own
	if diff := cmp.Diff(rules, s.kubeProxyRules()); diff != "" {
		t.Errorf("kube-proxy's rules (-before +after):\n%s", diff)
	}
	s.stayedReady(before)
	s.agree()
}

// ofService is in rules that come and go with Services, also with Services of a test before.
var ofService = regexp.MustCompile(`KUBE-(SVC|SVL|SEP|EXT|FW)-| -d `)

// kubeProxyRules are kube-proxy's rules on each node for all Services.
func (s *stage) kubeProxyRules() map[string]string {
	s.t.Helper()
	all := map[string]string{}
	for _, node := range s.Cluster.Nodes() {
		for line := range strings.Lines(s.run(node.Name(), "iptables-save")) {
			if strings.HasPrefix(line, "-A") && strings.Contains(line, "KUBE-") && !ofService.MatchString(line) {
				all[node.Name()] += line
			}
		}
		if all[node.Name()] == "" {
			s.t.Errorf("%s has no rules of kube-proxy", node.Name())
		}
	}
	return all
}

// stayedReady checks that no node was not Ready since readySince returned before.
func (s *stage) stayedReady(before map[string]string) {
	s.t.Helper()
	if diff := cmp.Diff(before, s.readySince()); diff != "" {
		s.t.Errorf("nodes were not Ready in between (-before +after):\n%s", diff)
	}
}

// readySince returns since when each node is Ready.
func (s *stage) readySince() map[string]string {
	s.t.Helper()
	nodes, err := s.Client.CoreV1().Nodes().List(s.ctx, metav1.ListOptions{})
	s.must(err)
	since := map[string]string{}
	for _, node := range nodes.Items {
		for _, condition := range node.Status.Conditions {
			if condition.Type == v1.NodeReady {
				since[node.Name] = fmt.Sprintf("%s since %s", condition.Status, condition.LastTransitionTime.UTC().Format(time.RFC3339))
			}
		}
	}
	return since
}
