// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os/exec"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// leaving is a connection from a pod to a host outside, in which both say a number after another,
// all the time.
type leaving struct {
	command *exec.Cmd
	conn    net.Conn
	// said is how many numbers each end has said, and heard how many each has heard, in their order.
	said, heard [2]atomic.Int64
	// gap is the longest time in which each end heard nothing, since goesOn.
	gap [2]atomic.Int64
	err atomic.Pointer[error]
}

// leave opens a connection from a pod to a host, which listens. It ends with the test.
func (s *stage) leave(pod *v1.Pod, listener net.Listener) *leaving {
	s.t.Helper()
	records, err := recordsOf(s.ctx, s.t, s.node(pod.Spec.NodeName))
	s.must(err)
	namespace := ""
	for _, r := range records {
		if r.Pod.UID == string(pod.UID) {
			namespace = r.NetNS
		}
	}
	host, port, err := net.SplitHostPort(listener.Addr().String())
	s.must(err)
	l := &leaving{command: s.node(pod.Spec.NodeName).Command(s.ctx, "nsenter", "--net="+namespace, "bash", "-c", fmt.Sprintf("exec 3<>/dev/tcp/%s/%s; cat <&3 & cat >&3", host, port))}
	in, err := l.command.StdinPipe()
	s.must(err)
	out, err := l.command.StdoutPipe()
	s.must(err)
	s.must(l.command.Start())
	l.conn, err = listener.Accept()
	s.must(err)
	s.t.Cleanup(func() {
		l.conn.Close()
		in.Close()
		_ = l.command.Process.Kill()
		_ = l.command.Wait()
	})
	for i, end := range []struct {
		to   io.Writer
		from io.Reader
	}{{in, out}, {l.conn, l.conn}} {
		go l.say(i, end.to)
		go l.hear(i, end.from)
	}
	return l
}

func (l *leaving) fail(err error) { l.err.CompareAndSwap(nil, &err) }

func (l *leaving) say(end int, to io.Writer) {
	for {
		if _, err := fmt.Fprintln(to, l.said[end].Load()); err != nil {
			l.fail(err)
			return
		}
		l.said[end].Add(1)
		<-time.After(20 * time.Millisecond)
	}
}

func (l *leaving) hear(end int, from io.Reader) {
	scanner := bufio.NewScanner(from)
	last := time.Now()
	for want := int64(0); scanner.Scan(); want++ {
		if scanner.Text() != fmt.Sprint(want) {
			l.fail(fmt.Errorf("heard %q, want %d", scanner.Text(), want))
			return
		}
		l.heard[end].Add(1)
		now := time.Now()
		if gap := int64(now.Sub(last)); gap > l.gap[end].Load() {
			l.gap[end].Store(gap)
		}
		last = now
	}
	l.fail(fmt.Errorf("the connection ended: %w", scanner.Err()))
}

// goesOn waits until both ends have heard all that was said until now, and more, and logs for how
// long they heard nothing since it was called before.
func (s *stage) goesOn(during string, all ...*leaving) {
	s.t.Helper()
	for _, l := range all {
		said := [2]int64{l.said[0].Load(), l.said[1].Load()}
		s.eventually("the connection goes on after "+during, func() error {
			if err := l.err.Load(); err != nil {
				s.t.Fatal(*err)
			}
			if l.heard[0].Load() <= said[1] || l.heard[1].Load() <= said[0] {
				return fmt.Errorf("the pod has heard %d numbers of %d, the host %d of %d", l.heard[0].Load(), said[1], l.heard[1].Load(), said[0])
			}
			return nil
		})
		s.t.Logf("%s: the pod heard nothing for %s, the host for %s", during,
			time.Duration(l.gap[0].Swap(0)).Round(time.Millisecond), time.Duration(l.gap[1].Swap(0)).Round(time.Millisecond))
	}
}

// TestClaimEgress: ordinary pods on two nodes leave with the one address of an IPClaim, from their
// first packet on. Their connections, in which both ends speak, survive a drain of the node that
// answers for the address, an agent that hangs there, the absence of the API server, that the node
// is cut off from it, and that its power is cut.
func TestClaimEgress(t *testing.T) {
	network := shared.Cluster.Network()
	s := newStageOf(t, v1alpha1.IPPoolSpec{
		Subnet: network.Floating.String(), Gateway: network.FloatingGateway().String(), Ranges: []string{"10.0.70.135-10.0.70.139"},
		NodeSubnets: []string{network.Nodes.String()}, NodeAddresses: &v1alpha1.NodeAddresses{},
	})
	s.atEnd(func() {
		s.kubectl("-n", s.name, "delete", "ipclaim", "partners", "--ignore-not-found")
		s.kubectl("patch", "ippool", s.pools[0], "--type=merge", "-p", `{"spec":{"nodeAddresses":null}}`)
	})
	const far = "198.51.100.8"
	reach := func(verb string) {
		s.client("ip", "address", verb, far+"/32", "dev", "lo")
		_, err := s.Cluster.Router().Exec(s.ctx, "ip", "route", verb, far+"/32", "via", network.Client().String())
		s.must(err)
	}
	reach("add")
	s.atEnd(func() { reach("del") })
	listener, err := s.Cluster.Client().Listen(s.ctx, "tcp", net.JoinHostPort(far, "0"))
	s.must(err)
	t.Cleanup(func() { listener.Close() })

	s.apply(fmt.Sprintf(`apiVersion: berth.dev/v1alpha1
kind: IPClaim
metadata: {name: partners, namespace: %s}
spec: {pools: [%s], size: 1, preallocate: true, egress: {}}
`, s.name, s.pools[0]))
	carrierOf := func(not string) (carrier, address string) {
		t.Helper()
		s.eventually("a node answers for the claim's address", func() error {
			ips, err := s.berth.FloatingIPs.List(s.ctx, metav1.ListOptions{FieldSelector: "spec.owner.kind=IPClaim,spec.owner.namespace=" + s.name})
			if err != nil {
				return err
			}
			for i := range ips.Items {
				if e := ips.Items[i].Spec.Egress; e != nil && e.Node != "" && e.Node != not {
					assignment, err := s.berth.NodeAssignments.Get(s.ctx, e.Node, metav1.GetOptions{})
					if err == nil && slices.Contains(assignment.Status.Carried, ips.Items[i].Spec.Address) {
						carrier, address = e.Node, ips.Items[i].Spec.Address
						return nil
					}
				}
			}
			return fmt.Errorf("none of %d", len(ips.Items))
		})
		return carrier, address
	}
	first, address := carrierOf("")
	var others []string
	for _, node := range s.Cluster.Nodes() {
		if node.Name() != first {
			others = append(others, node.Name())
		}
	}
	var all []*leaving
	for _, node := range others[:2] {
		l := s.leave(s.start("from-"+node, on(node)), listener)
		if source, _, err := net.SplitHostPort(l.conn.RemoteAddr().String()); err != nil || source != address {
			t.Errorf("a pod of %s leaves with %s, want %s (%v)", node, source, address, err)
		}
		all = append(all, l)
	}
	s.goesOn("the beginning", all...)

	// Each time the carrier is first, on which none of the pods runs.
	comesBack := func(from string) {
		t.Helper()
		for _, node := range others {
			s.kubectl("cordon", node)
			s.atEnd(func() { s.kubectl("uncordon", node) })
		}
		if back, _ := carrierOf(from); back != first {
			t.Fatalf("%s carries the address, want %s", back, first)
		}
		for _, node := range others {
			s.kubectl("uncordon", node)
		}
		s.goesOn("the way back", all...)
	}
	s.atEnd(s.settled)

	s.kubectl("cordon", first)
	s.atEnd(func() { s.kubectl("uncordon", first) })
	next, _ := carrierOf(first)
	s.goesOn("a drain of the carrier, to "+next, all...)
	s.kubectl("uncordon", first)
	comesBack(next)

	before := s.restarts("berth-agent")
	s.signal(first, "STOP", "berth-agent")
	s.eventually("the kubelet has ended the agent that hung", func() error {
		if s.restarts("berth-agent") == before {
			return fmt.Errorf("agents were started anew %d times", before)
		}
		return nil
	})
	s.settled()
	s.goesOn("the carrier's agent hung", all...)
	if now, _ := carrierOf(""); now != first {
		comesBack(now)
	}

	s.atEnd(func() { s.must(s.Cluster.StartAPIServer(s.ctx)) })
	s.must(s.Cluster.StopAPIServer(s.ctx))
	<-time.After(time.Minute) // longer than a Lease of a node
	s.must(s.Cluster.StartAPIServer(s.ctx))
	s.settled()
	s.goesOn("a minute without API server", all...)
	if now, _ := carrierOf(""); now != first {
		comesBack(now)
	}

	endpoints, err := s.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(s.ctx, "kubernetes", metav1.GetOptions{})
	s.must(err)
	server := endpoints.Endpoints[0].Addresses[0]
	s.atEnd(func() { s.run(first, "sh", "-c", "ip route del blackhole "+server+" || true") })
	s.run(first, "ip", "route", "add", "blackhole", server)
	next, _ = carrierOf(first)
	s.goesOn("the carrier was cut off from the API server, by "+next, all...)
	s.run(first, "ip", "route", "del", "blackhole", server)
	s.settled()
	s.goesOn("it was connected again", all...)
	comesBack(next)

	s.atEnd(func() { s.must(s.Cluster.StartNode(s.ctx, first)) })
	s.must(s.Cluster.StopNode(s.ctx, first))
	next, _ = carrierOf(first)
	s.goesOn("the power of the carrier was cut, by "+next, all...)
}
