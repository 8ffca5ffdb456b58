// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/deploy"
)

// installFailover installs berth-failover from the chart until the end of the test, with further
// values of failover where they are not empty.
func (s *stage) installFailover(values string) {
	s.t.Helper()
	file := s.ofChart("failover:\n  enabled: true\n  "+values+"\n", func(object *unstructured.Unstructured) bool {
		return strings.Contains(object.GetName(), "failover")
	})
	s.atEnd(func() { s.kubectl("delete", "--wait=true", "-f", file) })
	s.kubectl("apply", "-f", file)
	s.kubectl("-n", deploy.Namespace, "rollout", "status", "deployment/berth-failover", patiently)
}

// ofChart renders the chart with values, and returns a file with the objects that are wanted, for
// kubectl.
func (s *stage) ofChart(values string, wanted func(*unstructured.Unstructured) bool) string {
	s.t.Helper()
	folder := s.t.TempDir()
	file := filepath.Join(folder, "values.yaml")
	s.must(os.WriteFile(file, []byte(values), 0o600))
	objects, err := deploy.ChartObjects(s.ctx, os.Stderr, deploy.Namespace, file)
	s.must(err)
	var text strings.Builder
	for _, object := range objects {
		if wanted(object) {
			line, err := json.Marshal(object)
			s.must(err)
			text.Write(append(line, '\n'))
		}
	}
	file = filepath.Join(folder, "objects.json")
	s.must(os.WriteFile(file, []byte(text.String()), 0o600))
	return file
}

// timeline has what happened to a pod since a time.
type timeline struct {
	since time.Time
	parts []part
}

type part struct {
	name string
	at   time.Duration
}

func (l *timeline) has(name string) bool {
	return slices.ContainsFunc(l.parts, func(p part) bool { return p.name == name })
}

// note notes that something happened now, if it had not before.
func (l *timeline) note(name string) {
	if !l.has(name) {
		l.parts = append(l.parts, part{name, time.Since(l.since)})
	}
}

func (l *timeline) String() string {
	var text []string
	for _, p := range l.parts {
		text = append(text, fmt.Sprintf("%s %.1f s", p.name, p.at.Seconds()))
	}
	return strings.Join(text, ", ")
}

// moves has the pod's node lost, and returns the next pod when it answers, and when what happened.
// It returns no pod where none has answered for the time of patience.
func (s *stage) moves(old *v1.Pod, patience time.Duration, lose func(ctx context.Context, node string) error) (*v1.Pod, *timeline) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	pods, err := s.Client.CoreV1().Pods(s.name).Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", old.Name).String()})
	s.must(err)
	defer pods.Stop()
	nodes, err := s.Client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", old.Spec.NodeName).String()})
	s.must(err)
	defer nodes.Stop()
	lease, err := s.Client.CoordinationV1().Leases(v1.NamespaceNodeLease).Get(ctx, old.Spec.NodeName, metav1.GetOptions{})
	s.must(err)
	l := &timeline{since: time.Now()}
	l.parts = append(l.parts, part{"last renewal of the Lease", lease.Spec.RenewTime.Sub(l.since)})
	s.must(lose(ctx, old.Spec.NodeName))
	l.note("lost")
	var next *v1.Pod
	answers := time.NewTicker(50 * time.Millisecond)
	defer answers.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, l
		case e := <-nodes.ResultChan():
			if n, ok := e.Object.(*v1.Node); ok && (isTainted(n, v1alpha1.TaintLost) || isTainted(n, v1.TaintNodeOutOfService)) {
				l.note("tainted")
			}
		case e := <-pods.ResultChan():
			pod, ok := e.Object.(*v1.Pod)
			switch {
			case !ok:
			case pod.UID == old.UID && e.Type == watch.Deleted:
				l.note("deleted")
			case pod.UID != old.UID && e.Type != watch.Deleted:
				next = pod
				if pod.Spec.NodeName != "" {
					l.note("scheduled")
				}
				if pod.Status.Phase == v1.PodRunning {
					l.note("running")
				}
			}
		case <-answers.C:
			if next == nil || next.Status.Phase != v1.PodRunning {
				continue
			}
			if uid, err := s.Ask(ctx, old.Status.PodIP); err == nil && uid == string(next.UID) {
				l.note("answers")
				return next, l
			}
		}
	}
}

// TestFailover: the pod of a node that died runs elsewhere, and answers on its address, and nobody
// has done anything. A pod beside it that did not ask for it stays. The node that is back has no
// taint.
func TestFailover(t *testing.T) {
	s := newStage(t, "10.0.70.243-10.0.70.247")
	s.installFailover("")
	old := s.statefulSet(s.pod("moving", s.floating, retaining, automatic), 1)[0]
	lost := old.Spec.NodeName
	staying := s.statefulSet(s.pod("staying", s.floating, retaining, on(lost)), 1)[0]
	s.answers(old)
	s.atEnd(s.settled)
	s.atEnd(s.startAll)
	before := len(s.writesOfFailover())
	where := s.leaderOfFailover()
	answers := s.askWho(old)
	next, timeline := s.moves(old, 2*time.Minute, s.Cluster.StopNode)
	if next == nil {
		t.Fatalf("the pod has not moved: %s", timeline)
	}
	t.Logf("the leader was on %s, the pod on %s: %s", where, lost, timeline)
	if next.Spec.NodeName == lost || next.Status.PodIP != old.Status.PodIP {
		t.Errorf("the next pod is on %s with %s, want another node than %s, and %s", next.Spec.NodeName, next.Status.PodIP, lost, old.Status.PodIP)
	}
	if !timeline.has("tainted") {
		t.Errorf("the node was not tainted: %s", timeline)
	}
	if now := s.get(staying.Name); now.UID != staying.UID || now.DeletionTimestamp != nil {
		t.Errorf("%s did not ask to be moved, and is %s, deleted at %v", staying.Name, now.UID, now.DeletionTimestamp)
	}
	s.expectOneAnswer(old.Status.PodIP, next.Spec.NodeName)

	s.must(s.Cluster.StartNode(s.ctx, lost))
	s.must(s.Cluster.WaitReady(s.ctx, lost))
	s.eventually("the taint is gone", func() error {
		n, err := s.Client.CoreV1().Nodes().Get(s.ctx, lost, metav1.GetOptions{})
		if err == nil && isTainted(n, v1alpha1.TaintLost) {
			err = fmt.Errorf("%s has the taints %v", lost, n.Spec.Taints)
		}
		return err
	})
	s.settled()
	s.kubectl("-n", deploy.Namespace, "rollout", "status", "deployment/berth-failover", patiently)
	s.agree()
	s.expectOneAnswer(old.Status.PodIP, next.Spec.NodeName)
	s.expectAnswersOf(answers, old.Status.PodIP, lost, next.Spec.NodeName)
	t.Log(answers)
	// TestFailoverStays looks there.
	if len(s.writesOfFailover()) == before {
		t.Error("the audit log has no writes of berth-failover")
	}
}

// TestFailoverBlockedPort: the cable of a node is plugged into a port that passes nothing for a
// while, as a switch with STP has them (IEEE 802.1D: twice the forward delay, 30 s). The pod moves
// meanwhile. When the port passes frames, the node does not answer.
func TestFailoverBlockedPort(t *testing.T) {
	s := newStage(t, "10.0.70.243-10.0.70.247")
	s.installFailover("")
	old := s.statefulSet(s.pod("behind", s.floating, retaining, automatic), 1)[0]
	s.answers(old)
	lost, address := old.Spec.NodeName, old.Status.PodIP
	s.atEnd(s.settled)
	s.atEnd(s.unblockAll)
	answers := s.askWho(old)
	opens := time.NewTimer(30 * time.Second)
	next, timeline := s.moves(old, 2*time.Minute, func(ctx context.Context, node string) error {
		return errors.Join(s.Cluster.CutOff(ctx, node), s.Cluster.Block(ctx, node), s.Cluster.Reconnect(ctx, node))
	})
	if next == nil {
		t.Fatalf("the pod has not moved: %s", timeline)
	}
	t.Logf("the port of %s was blocked: %s", lost, timeline)
	<-opens.C
	s.must(s.Cluster.Unblock(s.ctx, lost))
	s.settled()
	s.agree()
	s.expectOneAnswer(address, next.Spec.NodeName)
	s.expectAnswersOf(answers, address, lost, next.Spec.NodeName)
	t.Log(answers)
}

// leaderOfFailover returns the node of the replica that leads, empty while none does.
func (s *stage) leaderOfFailover() string {
	s.t.Helper()
	holder := s.kubectl("-n", deploy.Namespace, "get", "lease", "berth-failover", "-o", "jsonpath={.spec.holderIdentity}")
	name, _, _ := strings.Cut(holder, "_")
	if name == "" {
		return ""
	}
	return s.kubectl("-n", deploy.Namespace, "get", "pod", name, "--ignore-not-found", "-o", "jsonpath={.spec.nodeName}")
}
