// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/berth-dev/berth/cmd/kubectl-berth/failover"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/failover/status"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/witness"
)

// automatic has the pod moved from a node that died.
func automatic(pod *v1.Pod) {
	pod.Annotations[v1alpha1.AnnotationFailover] = v1alpha1.FailoverAutomatic
}

// TestFailoverStays: what is no death of a node moves nothing, while berth-failover watches pods
// that ask to be moved.
func TestFailoverStays(t *testing.T) {
	network := shared.Cluster.Network()
	s := newStageOf(t,
		v1alpha1.IPPoolSpec{Subnet: network.Floating.String(), Gateway: network.FloatingGateway().String(), Ranges: []string{"10.0.70.248-10.0.70.249", "10.0.70.251"}},
		v1alpha1.IPPoolSpec{Subnet: network.Floating6.String(), Gateway: "fd00:70::1", Ranges: []string{"fd00:70::60-fd00:70::6f"}})
	s.installFailover("")
	var pods []*v1.Pod
	for _, node := range s.Cluster.Nodes() {
		s.createStatefulSet(s.pod("stays-on-"+node.Name(), s.floating, number(2), annotated(v1alpha1.AnnotationFamilies, "IPv4,IPv6"), retaining, automatic, on(node.Name())), 1)
	}
	for _, node := range s.Cluster.Nodes() {
		pods = append(pods, s.ready("stays-on-"+node.Name()+"-0"))
	}
	for _, pod := range pods {
		s.answers(pod)
	}
	s.atEnd(s.settled)

	s.withoutAPIServer(pods)
	s.allCarriersReturn(pods)
	s.mostNodesCutOff(pods)
	s.nodeHangs(pods)
}

// withoutAPIServer: no request fails and no connection breaks without the API server, and nothing
// moves when it is back.
func (s *stage) withoutAPIServer(pods []*v1.Pod) {
	s.t.Helper()
	// Much longer than what makes a node suspect.
	const away = 10 * time.Minute
	during := away.String() + " without API server"
	answers := s.askWho(pods...)
	var held []*steady
	for _, pod := range pods {
		held = append(held, s.steadily(pod, "/", 50*time.Millisecond))
	}
	tr := s.ask(pods...)
	before := s.writesOfFailover()
	s.atEnd(func() { s.must(s.Cluster.StartAPIServer(s.ctx)) })
	s.must(s.Cluster.StopAPIServer(s.ctx))
	<-time.After(away)
	s.must(s.Cluster.StartAPIServer(s.ctx))
	back := time.Now()
	s.settled()
	s.eventually("berth-failover leads again", func() error {
		lease, err := s.Client.CoordinationV1().Leases(deploy.Namespace).Get(s.ctx, status.Name, metav1.GetOptions{})
		if err == nil && !lease.Spec.RenewTime.After(back) {
			err = fmt.Errorf("its Lease was renewed at %s", lease.Spec.RenewTime)
		}
		return err
	})
	s.expectStayed(pods)
	s.expectUnbroken(tr, during)
	s.expectSteady(during, held...)
	s.expectOwnNodes(answers, during, pods...)
	if wrote := s.writesOfFailover()[len(before):]; len(wrote) > 0 {
		s.t.Errorf("during %s berth-failover wrote %d times, first %s", during, len(wrote), wrote[0])
	}
}

// allCarriersReturn: all nodes lose the carrier for a while, as at the restart of a switch. When it
// is back, each answers for its own.
func (s *stage) allCarriersReturn(pods []*v1.Pod) {
	s.t.Helper()
	answers := s.askWho(pods...)
	s.atEnd(s.reconnectAll)
	for _, node := range s.Cluster.Nodes() {
		s.must(s.Cluster.CutOff(s.ctx, node.Name()))
	}
	// Shorter than what makes nodes suspect.
	<-time.After(3 * time.Second)
	back := time.Now()
	s.reconnectAll()
	for _, pod := range pods {
		s.answers(pod)
		s.t.Logf("the pod on %s answers %.1f s after all carriers are back", pod.Spec.NodeName, time.Since(back).Seconds())
	}
	s.settled()
	s.expectStayed(pods)
	s.expectOwnNodes(answers, "the return of all carriers", pods...)
}

func (s *stage) reconnectAll() {
	s.t.Helper()
	for _, node := range s.Cluster.Nodes() {
		s.must(s.Cluster.Reconnect(s.ctx, node.Name()))
	}
}

// mostNodesCutOff: while most nodes are cut off, the brake is on and nothing moves, and a person
// ends it.
func (s *stage) mostNodesCutOff(pods []*v1.Pod) {
	s.t.Helper()
	connected := s.leaderOfFailover()
	answers := s.askWho(pods...)
	before := s.writesOfFailover()
	var cut []string
	for _, node := range s.Cluster.Nodes() {
		if node.Name() != connected {
			cut = append(cut, node.Name())
		}
	}
	s.atEnd(s.unblockAll)
	tr := s.ask(pods[slices.IndexFunc(pods, func(pod *v1.Pod) bool { return pod.Spec.NodeName == connected })])
	for _, node := range cut {
		s.must(s.Cluster.Block(s.ctx, node))
	}
	began := time.Now()
	s.eventually("the brake is on for both nodes", func() error {
		report, err := s.failover()
		if err == nil && (report.Brake == nil || report.Brake.Suspects != len(cut)) {
			err = fmt.Errorf("berth-failover says %+v", report)
		}
		return err
	})
	s.t.Logf("the brake was on for %v %.1f s after these were cut off", cut, time.Since(began).Seconds())
	s.must(s.Cluster.WaitNotReady(s.ctx, cut...))
	s.expectStayed(pods)
	if wrote := s.writesOfFailover()[len(before):]; len(wrote) > 0 {
		s.t.Errorf("under the brake berth-failover wrote %d times, first %s", len(wrote), wrote[0])
	}
	out, code := s.plugin("failover", "resume", "--yes")
	if code != 0 || !strings.Contains(out, cut[0]) || !strings.Contains(out, cut[1]) {
		s.t.Errorf("kubectl berth failover resume exits with %d and says %q", code, out)
	}
	s.eventually("the brake is off, and both nodes were judged", func() error {
		report, err := s.failover()
		if err != nil {
			return err
		}
		if report.Brake != nil {
			return fmt.Errorf("the brake is on: %+v", report.Brake)
		}
		for _, node := range report.Nodes {
			if node.Verdict == "" {
				return fmt.Errorf("there is no verdict about %s", node.Name)
			}
			s.t.Logf("after resume %s is %s", node.Name, node.Verdict)
		}
		return nil
	})
	s.unblockAll()
	s.settled()
	for i, pod := range pods {
		pods[i] = s.ready(pod.Name)
		s.answers(pods[i])
	}
	s.expectUnbroken(tr, "the cut of "+strings.Join(cut, " and "))
	s.expectOwnNodes(answers, "the cut", pods...)
}

func (s *stage) unblockAll() {
	s.t.Helper()
	for _, node := range s.Cluster.Nodes() {
		s.must(s.Cluster.Unblock(s.ctx, node.Name()))
	}
}

// nodeHangs: the pods of a node whose kubelet and agent hang stay, and answer.
func (s *stage) nodeHangs(pods []*v1.Pod) {
	s.t.Helper()
	leader := s.leaderOfFailover()
	pod := pods[slices.IndexFunc(pods, func(pod *v1.Pod) bool { return pod.Spec.NodeName != leader })]
	node := pod.Spec.NodeName
	answers, tr := s.askWho(pods...), s.ask(pods...)
	s.atEnd(func() { s.signal(node, "CONT", "kubelet", "berth-agent") })
	s.signal(node, "STOP", "kubelet", "berth-agent")
	s.awaitNodeEvent(node, "NodeHangs")
	s.must(s.Cluster.WaitNotReady(s.ctx, node))
	s.expectStayed(pods)
	s.signal(node, "CONT", "kubelet", "berth-agent")
	s.settled()
	s.expectStayed(pods)
	s.expectUnbroken(tr, "the time in which "+node+" hung")
	s.expectOwnNodes(answers, "the time in which "+node+" hung", pods...)
}

// awaitNodeEvent waits for an event of a node from now on.
func (s *stage) awaitNodeEvent(node, reason string) {
	s.t.Helper()
	began := metav1.Now().Rfc3339Copy()
	s.eventually("the node has the event "+reason, func() error {
		events, err := s.Client.CoreV1().Events(metav1.NamespaceAll).List(s.ctx, metav1.ListOptions{
			FieldSelector: fields.Set{"involvedObject.kind": "Node", "involvedObject.name": node, "reason": reason}.String(),
		})
		if err != nil {
			return err
		}
		for i := range events.Items {
			last := events.Items[i].CreationTimestamp.Time
			if series := events.Items[i].Series; series != nil {
				last = series.LastObservedTime.Time
			}
			if !last.Before(began.Time) {
				s.t.Logf("%s after %.1f s: %s", reason, time.Since(began.Time).Seconds(), events.Items[i].Message)
				return nil
			}
		}
		return fmt.Errorf("it has had %d before", len(events.Items))
	})
}

// failover returns what the leader of berth-failover says.
func (s *stage) failover() (*status.Status, error) {
	s.t.Helper()
	out, code := s.plugin("failover", "-o", "json")
	var report failover.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		return nil, fmt.Errorf("kubectl berth failover exits with %d and says %q: %w", code, out, err)
	}
	if report.Failover == nil {
		return nil, fmt.Errorf("nobody leads: %v", report.Unknown)
	}
	return report.Failover, nil
}

// expectStayed checks that the pods are where they were.
func (s *stage) expectStayed(pods []*v1.Pod) {
	s.t.Helper()
	for _, pod := range pods {
		if now := s.get(pod.Name); now.UID != pod.UID || now.Spec.NodeName != pod.Spec.NodeName || now.DeletionTimestamp != nil {
			s.t.Errorf("pod %s is %s on %s, deleted at %v; want %s on %s", pod.Name, now.UID, now.Spec.NodeName, now.DeletionTimestamp, pod.UID, pod.Spec.NodeName)
		}
	}
}

// askWho asks, until the end of the test or expectOwnNodes, which nodes answer for the pods'
// addresses.
func (s *stage) askWho(pods ...*v1.Pod) *witness.Answers {
	s.t.Helper()
	var addresses []string
	for _, pod := range pods {
		for _, ip := range pod.Status.PodIPs {
			addresses = append(addresses, ip.IP)
		}
	}
	answers, err := s.Answers(s.ctx, addresses...)
	s.must(err)
	s.t.Cleanup(func() { _ = answers.Stop() })
	return answers
}

// expectOwnNodes ends the questions, and checks that for each pod's addresses its node has answered
// and no other.
func (s *stage) expectOwnNodes(answers *witness.Answers, during string, pods ...*v1.Pod) {
	s.t.Helper()
	for _, pod := range pods {
		for _, ip := range pod.Status.PodIPs {
			s.expectAnswersOf(answers, ip.IP, pod.Spec.NodeName)
		}
	}
	s.t.Logf("%s: %s", during, answers)
}

// expectAnswersOf ends the questions, and checks that exactly these nodes have answered for an
// address, one after the other.
func (s *stage) expectAnswersOf(answers *witness.Answers, address string, nodes ...string) {
	s.t.Helper()
	s.must(answers.Stop())
	if got := answers.Nodes(address); !slices.Equal(got, nodes) {
		s.t.Errorf("for %s the answers are of %v, want %v: %+v", netip.MustParseAddr(address), got, nodes, answers.Turns(address))
	}
}

// writesOfFailover returns the lines of the audit log of berth-failover's writes of pods and nodes,
// and of Berth's objects.
func (s *stage) writesOfFailover() []string {
	s.t.Helper()
	file, err := os.Open(s.Cluster.AuditLog())
	s.must(err)
	defer file.Close()
	var writes []string
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if !strings.Contains(line, `"username":"system:serviceaccount:`+deploy.Namespace+":"+status.Name+`"`) {
			continue
		}
		if slices.ContainsFunc([]string{"create", "update", "patch", "delete"}, func(verb string) bool { return strings.Contains(line, `"verb":"`+verb+`"`) }) {
			writes = append(writes, line)
		}
	}
	s.must(lines.Err())
	return writes
}
