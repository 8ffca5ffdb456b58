// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/agentport"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/failover/status"
)

// programs are Berth's, by their pods' names. asked are the requests for other resources than those
// that they answer to GET.
type programs struct {
	says  map[string]string
	fails map[string]error
	// then is the answer to a request that changes something.
	then string
	// hangs is the one that does not answer.
	hangs string
	asked []string
}

func (p *programs) Ask(ctx context.Context, q agentport.Question) ([]byte, error) {
	if q.Of != status.Name || q.Audience != status.Audience {
		return nil, errors.New("asked as another program")
	}
	if q.Pod.Name == p.hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if q.Account != agentpod.Diagnosis {
		p.asked = append(p.asked, q.Method+" "+q.Path+" "+string(q.Body)+" of "+q.Pod.Name+" as "+q.Account)
		return []byte(p.then), nil
	}
	return []byte(p.says[q.Pod.Name]), p.fails[q.Pod.Name]
}

func (p *programs) Agent(pod *v1.Pod) inquiry.Client {
	return func(_ context.Context, method, path string, query url.Values) ([]byte, error) {
		p.asked = append(p.asked, strings.TrimSpace(method+" "+path+" "+query.Get("address"))+" of "+pod.Name)
		return []byte(p.says[pod.Name]), p.fails[pod.Name]
	}
}

func podOn(namespace, name, node string, labels, annotations map[string]string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels, Annotations: annotations}, Spec: v1.PodSpec{NodeName: node}, Status: v1.PodStatus{Phase: v1.PodPending}}
}

func replica(name string) *v1.Pod {
	return podOn("berth-system", name, "node9", map[string]string{"app.kubernetes.io/name": "berth-failover"}, nil)
}

func agentOn(node string) *v1.Pod {
	return podOn("berth-system", "agent-"+node, node, agentpod.Labels(), nil)
}

var starting = func() *v1.Pod {
	pod := podOn("shop", "db-0", "node2", nil, map[string]string{v1alpha1.AnnotationFloatingIPs: "10.0.70.5"})
	pod.Spec.Containers = []v1.Container{{Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1alpha1.ResourceIP: resource.MustParse("1")}}}}
	return pod
}()

const answersStill = `{"unanswered":[{"address":"10.0.70.5","why":"a host with MAC 02:00:00:00:00:01 still answers for 10.0.70.5","lastNode":"node1","macs":["02:00:00:00:00:01"]}]}`

func encode(t *testing.T, of status.Status) string {
	t.Helper()
	text, err := json.Marshal(of)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// newTestLook returns a look at a cluster with these pods.
func newTestLook(of *programs, in string, pods ...runtime.Object) (*look, *strings.Builder) {
	errOut := &strings.Builder{}
	return &look{
		Call: &command.Call{IOStreams: genericiooptions.IOStreams{In: strings.NewReader(in), ErrOut: errOut}, Kube: fake.NewClientset(pods...), System: "berth-system"},
		port: of,
	}, errOut
}

// Lost nodes and waiting addresses are shown with their state and the reason, with and without
// berth-failover.
func TestShow(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	lost := status.Status{Leads: true, Watching: true, Known: 6, Nodes: []status.Node{
		{Name: "node1", Since: now.Add(-20 * time.Second), Tainted: true, Verdict: status.Gone, Pods: []status.Pod{{Namespace: "shop", Name: "db-0", Addresses: []netip.Addr{netip.MustParseAddr("10.0.70.5"), netip.MustParseAddr("2001:db8::5")}}}},
		{Name: "node3", Since: now.Add(-40 * time.Second), Verdict: status.Hung, Waits: "power it off"},
		{Name: "node4", Since: now.Add(-16 * time.Second)},
		{Name: "node5", Tainted: true},
		{Name: "node6", Since: now.Add(-50 * time.Second), Tainted: true, Verdict: status.Off, Waits: "1 pods move"},
	}}
	braked := status.Status{Leads: true, Watching: true, Known: 3, Brake: &status.Brake{Since: now.Add(-time.Minute), Suspects: 2}}
	for _, test := range []struct {
		name  string
		pods  []runtime.Object
		says  map[string]string
		fails map[string]error
		want  string
		found int
	}{
		{"nothing is installed, and nothing waits", nil, nil, nil, `berth-failover is not installed: no pod moves by itself from a lost node. The chart's value failover.enabled installs it.
No problem.
`, 0},
		{"an address waits", []runtime.Object{starting, agentOn("node1"), agentOn("node2")}, map[string]string{"agent-node2": answersStill}, nil, `NODE    ADDRESS     POD         STATE   SINCE   WHY
node2   10.0.70.5   shop/db-0   Waits   -       a host with MAC 02:00:00:00:00:01 still answers for 10.0.70.5

berth-failover is not installed: no pod moves by itself from a lost node. The chart's value failover.enabled installs it.
Node node2 waits for 10.0.70.5: a host with MAC 02:00:00:00:00:01 still answers for 10.0.70.5. If you know that no other host answers for it:
  kubectl berth failover take 10.0.70.5
`, 1},
		{"nodes are lost", []runtime.Object{replica("f-1"), replica("f-2")}, map[string]string{"f-1": encode(t, status.Status{Watching: true, Known: 6}), "f-2": encode(t, lost)}, nil, `NODE    ADDRESS       POD         STATE     SINCE   WHY
node1   10.0.70.5     shop/db-0   Gone      20s     nothing of it answers
node1   2001:db8::5   shop/db-0   Gone      20s     nothing of it answers
node3   -             -           Hung      40s     its kernel answers, and its agent does not; power it off
node4   -             -           Suspect   16s     the kubelet does not renew its Lease
node5   -             -           Back      -       the taint berth.dev/lost goes
node6   -             -           Off       50s     the fencer has powered it off; 1 pods move

berth-failover knows 6 nodes.
Node node1 is suspect: nothing of it answers
  kubectl describe node node1
Node node3 is suspect: its kernel answers, and its agent does not; power it off
  kubectl describe node node3
Node node4 is suspect: the kubelet does not renew its Lease
  kubectl describe node node4
Node node6 is suspect: the fencer has powered it off; 1 pods move
  kubectl describe node node6
`, 4},
		{"the brake is on", []runtime.Object{replica("f-1")}, map[string]string{"f-1": encode(t, braked)}, nil, `berth-failover knows 3 nodes.
Nothing moves since 2030-01-02T03:03:05Z, because 2 of 3 nodes are suspect: the network or the API server may be the cause. If these nodes are off:
  kubectl berth failover resume
`, 1},
		{"it sees no Leases", []runtime.Object{replica("f-1")}, map[string]string{"f-1": encode(t, status.Status{Leads: true, Known: 3})}, nil, `berth-failover knows 3 nodes.
berth-failover does not see the Leases of nodes: it suspects none
  kubectl logs -A -l app.kubernetes.io/name=berth-failover
`, 1},
		{"nobody leads", []runtime.Object{replica("f-1")}, map[string]string{"f-1": encode(t, status.Status{Watching: true})}, nil, `no replica of berth-failover leads: no pod moves by itself
  kubectl get pods -A -l app.kubernetes.io/name=berth-failover
`, 1},
		{"nobody may be asked", []runtime.Object{replica("f-1"), starting, agentOn("node2")}, nil, map[string]error{"f-1": errors.New("no right"), "agent-node2": errors.New("no right")}, `It is not known for which addresses node node2 waits: no right
It is not known which nodes are suspect: no right
`, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			l, _ := newTestLook(&programs{says: test.says, fails: test.fails}, "", test.pods...)
			r := &Report{Waiting: []waiting{}}
			l.addStatus(t.Context(), r)
			if err := l.addWaiting(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			if err := answer.NewFormat().Print(&out, r.answer(now)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, out.String()); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if got := len(r.Waiting) + len(r.problems()); got != test.found {
				t.Errorf("%d findings, want %d", got, test.found)
			}
		})
	}
}

// A replica on a node that died is not waited for where another one leads.
func TestLeaderIsBesideADeadReplica(t *testing.T) {
	of := &programs{says: map[string]string{"f-2": encode(t, status.Status{Leads: true, Known: 3})}, hangs: "f-1"}
	l, _ := newTestLook(of, "", replica("f-1"), replica("f-2"))
	r := &Report{}
	if l.addStatus(t.Context(), r); r.Failover == nil || r.Failover.Known != 3 || len(r.Unknown) > 0 {
		t.Errorf("%+v", r)
	}
}

// Only agents of nodes with pods that start are asked.
func TestAsksFewAgents(t *testing.T) {
	of := &programs{says: map[string]string{"agent-node2": "{}"}}
	l, _ := newTestLook(of, "", starting, agentOn("node1"), agentOn("node2"), agentOn("node3"))
	if err := l.addWaiting(t.Context(), &Report{}); err != nil || !slices.Equal(of.asked, []string{"GET /v1/inspect of agent-node2"}) {
		t.Errorf("asked %q, %v", of.asked, err)
	}
}

// The brake ends only after the user has read what it means.
func TestResume(t *testing.T) {
	suspects := []status.Node{{Name: "node1", Since: time.Now()}, {Name: "node2", Since: time.Now()}, {Name: "node7", Tainted: true}}
	on := encode(t, status.Status{Leads: true, Watching: true, Known: 3, Brake: &status.Brake{Suspects: 2}, Nodes: suspects})
	off := encode(t, status.Status{Leads: true, Watching: true, Known: 3})
	follows := encode(t, status.Status{Watching: true, Known: 3})
	const posted = `POST /v1/resume {"nodes":["node1","node2"]} of f-2 as berth-failover-operator`
	for _, test := range []struct {
		name, in, says string
		// then says berth-failover after the request, off without it.
		then      string
		o         writing
		asks      bool
		text, err string
		posts     bool
	}{
		{name: "more are suspect meanwhile", in: "yes\n", says: on, then: on, asks: true, text: "return: node1, node2. The brake stays on: more nodes became suspect meanwhile.", posts: true},
		{name: "yes", in: "yes\n", says: on, asks: true, text: "The brake is off. These nodes count as lost until they return: node1, node2.", posts: true},
		{name: "no", in: "no\n", says: on, asks: true, err: "nothing was changed: write yes to go on, or give --yes"},
		{name: "no terminal", says: on, asks: true, err: "nothing was changed: write yes"},
		{name: "confirmed before", says: on, o: writing{yes: true}, text: "The brake is off", posts: true},
		{name: "dry run", says: on, o: writing{dryRun: true}, text: "These nodes would count as lost: node1, node2. Nothing was changed."},
		{name: "no brake", says: off, text: "There is no brake"},
	} {
		t.Run(test.name, func(t *testing.T) {
			of := &programs{says: map[string]string{"f-1": follows, "f-2": test.says}, then: off}
			if test.then != "" {
				of.then = test.then
			}
			l, errOut := newTestLook(of, test.in, replica("f-1"), replica("f-2"))
			a, err := l.resume(t.Context(), &test.o)
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Fatalf("error is %v, want %q", err, test.err)
			}
			if err == nil {
				var out strings.Builder
				if a.Text(&out, answer.PaintOf(&out)); !strings.Contains(out.String(), test.text) {
					t.Errorf("says %q, want %q", out.String(), test.text)
				}
			}
			if asks := strings.Contains(errOut.String(), "answers: node1, node2.\nWhere a node is only cut off, its processes go on, beside the new ones.\nGo on?"); asks != test.asks {
				t.Errorf("asks %q", errOut.String())
			}
			if posts := slices.Equal(of.asked, []string{posted}); posts != test.posts || !posts && len(of.asked) > 0 {
				t.Errorf("asked %q", of.asked)
			}
		})
	}
	l, _ := newTestLook(&programs{}, "")
	if _, err := l.resume(t.Context(), &writing{}); err == nil || !strings.Contains(err.Error(), "berth-failover is not installed in namespace berth-system") {
		t.Errorf("without berth-failover: %v", err)
	}
}

// A node is told only of an address that waits there, and after the user has read what it hears.
func TestTake(t *testing.T) {
	addr := netip.MustParseAddr("10.0.70.5")
	held := &v1alpha1.FloatingIP{Spec: v1alpha1.FloatingIPSpec{Address: "10.0.70.5", Node: "node2", Pod: &v1alpha1.PodReference{Name: "db-0"}, Owner: &v1alpha1.Owner{Namespace: "shop"}}}
	elsewhere := held.DeepCopy()
	elsewhere.Spec.Node = "node3"
	const posted = "POST /v1/take-over 10.0.70.5 of agent-node2"
	const why = "a host with MAC 02:00:00:00:00:01 still answers for 10.0.70.5"
	for _, test := range []struct {
		name, in, says string
		ip             *v1alpha1.FloatingIP
		o              writing
		asks           bool
		text, err      string
		posts          bool
	}{
		{name: "yes", in: "yes\n", says: answersStill, ip: held, asks: true, text: "Node node2 answers for 10.0.70.5 within a second.", posts: true},
		{name: "no", in: "y\n", says: answersStill, ip: held, asks: true, err: "nothing was changed: write yes to go on, or give --yes"},
		{name: "confirmed before", says: answersStill, ip: held, o: writing{yes: true}, text: "within a second", posts: true},
		{name: "dry run", says: answersStill, ip: held, o: writing{dryRun: true}, text: "Node node2 would answer for 10.0.70.5, of pod shop/db-0, although: " + why + ". Nothing was changed."},
		{name: "it answers", says: `{}`, ip: held, o: writing{yes: true}, err: "node node2 does not wait for 10.0.70.5: it answers for it"},
		{name: "no pod has it", says: answersStill, ip: &v1alpha1.FloatingIP{}, o: writing{yes: true}, err: "no pod has 10.0.70.5 on a node"},
		{name: "no agent", says: answersStill, ip: elsewhere, o: writing{yes: true}, err: "node node3 has no agent in namespace berth-system"},
	} {
		t.Run(test.name, func(t *testing.T) {
			of := &programs{says: map[string]string{"agent-node2": test.says}}
			l, errOut := newTestLook(of, test.in, agentOn("node1"), agentOn("node2"))
			a, err := l.take(t.Context(), &test.o, addr, test.ip)
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Fatalf("error is %v, want %q", err, test.err)
			}
			if err == nil {
				var out strings.Builder
				if a.Text(&out, answer.PaintOf(&out)); !strings.Contains(out.String(), test.text) {
					t.Errorf("says %q, want %q", out.String(), test.text)
				}
			}
			asks := strings.Contains(errOut.String(), "although: "+why+".") && strings.Contains(errOut.String(), "two answers") && strings.Contains(errOut.String(), "Go on only if node1 is off")
			if asks != test.asks {
				t.Errorf("asks %q", errOut.String())
			}
			if slices.Contains(of.asked, posted) != test.posts {
				t.Errorf("asked %q", of.asked)
			}
		})
	}
}
