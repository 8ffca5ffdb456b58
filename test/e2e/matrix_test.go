// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/witness"
)

// party asks and is asked.
type party struct {
	name string
	// address is where it serves, and the source that others must see.
	address string
	port    string
	// node is where a pod of the default network runs.
	node string
	// ask sends a request on from the party.
	ask func(ctx context.Context, protocol, address, port, request string) (string, error)
}

// errNoAnswer says that a party asked and got no answer.
var errNoAnswer = errors.New("no answer")

// podParty asks by way of the pod's own server, which is told what to ask.
func (s *stage) podParty(pod *v1.Pod) party {
	address := pod.Status.PodIP
	return party{name: pod.Name, address: address, port: witness.Port, ask: func(ctx context.Context, protocol, to, port, request string) (string, error) {
		query := url.Values{"protocol": {protocol}, "host": {to}, "port": {port}, "request": {request}}
		text, err := witness.Get(ctx, s.Cluster.Client(), "http://"+net.JoinHostPort(address, witness.Port)+"/dial?"+query.Encode())
		if err != nil {
			return "", fmt.Errorf("tell %s what to ask: %w", pod.Name, err)
		}
		var answer struct{ Responses, Errors []string }
		if err := json.Unmarshal([]byte(text), &answer); err != nil {
			return "", fmt.Errorf("%s said %q: %w", pod.Name, text, err)
		}
		if len(answer.Responses) != 1 {
			return "", fmt.Errorf("%w: %s", errNoAnswer, strings.Join(answer.Errors, "; "))
		}
		return answer.Responses[0], nil
	}}
}

// hostPort is where hosts of the matrix serve.
const hostPort = "18080"

// hostParty asks from a host, and serves there what pods serve.
func (s *stage) hostParty(host *lab.Host, address string) party {
	s.t.Helper()
	listener, err := host.Listen(s.ctx, "tcp", net.JoinHostPort(address, hostPort))
	s.must(err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.RemoteAddr) })}
	go func() { _ = server.Serve(listener) }()
	s.t.Cleanup(func() { _ = server.Close() })
	return party{name: host.Name(), address: address, port: hostPort, ask: func(ctx context.Context, _, to, port, request string) (string, error) {
		answer, err := witness.Get(ctx, host, "http://"+net.JoinHostPort(to, port)+"/"+request)
		if err != nil {
			return "", fmt.Errorf("%w: %w", errNoAnswer, err)
		}
		return answer, nil
	}}
}

// expectSeen checks that a request arrives and that its source is the asking
// party's own address.
func (s *stage) expectSeen(protocol string, from, to party, port string) {
	s.t.Helper()
	seen, err := from.ask(s.ctx, protocol, to.address, port, "clientip")
	if err != nil {
		s.t.Errorf("%s: %s (%s) to %s (%s): %v", protocol, from.name, from.address, to.name, to.address, err)
		return
	}
	if to.node == from.name {
		return // a node has an address for each of the default network's pods
	}
	if source, _, err := net.SplitHostPort(seen); err != nil || source != from.address {
		s.t.Errorf("%s: %s sees %s as %q, want its own address %s", protocol, to.name, from.name, seen, from.address)
	}
}

// podsOfEachKind starts floating pods and pods of the default network that have host ports from
// 9000 on, in their order.
func (s *stage) podsOfEachKind() (members []*v1.Pod, pods []party) {
	s.t.Helper()
	members = []*v1.Pod{
		s.pod("floating-1a", netexec, s.floating, on("node1"), published(0)), s.pod("floating-1b", netexec, s.floating, on("node1"), published(1)),
		s.pod("floating-2", netexec, s.floating, on("node2"), published(2)),
		s.pod("default-1", netexec, on("node1"), published(3)), s.pod("default-3", netexec, on("node3"), published(4)),
	}
	for _, pod := range members {
		s.create(pod)
	}
	for i, pod := range members {
		members[i] = s.ready(pod.Name)
		asked := s.podParty(members[i])
		if members[i].Spec.SchedulerName != berthScheduler {
			asked.node = members[i].Spec.NodeName
		}
		pods = append(pods, asked)
	}
	return members, pods
}

// published gives the pod a host port by TCP and one by UDP.
func published(n int32) option {
	return func(pod *v1.Pod) {
		pod.Spec.Containers[0].Ports = []v1.ContainerPort{
			{ContainerPort: 8080, HostPort: int32(publishedPort(n))},
			{ContainerPort: 8081, HostPort: int32(publishedPort(n)), Protocol: v1.ProtocolUDP},
		}
	}
}

// publishedPort is the port of published.
func publishedPort(n int32) uint16 { return uint16(9000 + n) }

// expectHostPorts checks that everybody reaches the pods through their nodes' ports, and is
// seen by the own address. A pod sees its node where it asks itself.
func (s *stage) expectHostPorts(pods []*v1.Pod, askers []party) {
	s.t.Helper()
	for i, pod := range pods {
		port := strconv.Itoa(int(publishedPort(int32(i))))
		for _, from := range askers {
			if from.name == s.Cluster.Router().Name() {
				continue // its address there is another one
			}
			to := party{name: "the host port of " + pod.Name, address: pod.Status.HostIP, port: port}
			for _, protocol := range []string{"http", "udp"} {
				if protocol == "udp" && from.port != witness.Port {
					continue // hosts ask by HTTP only
				}
				if from.name != pod.Name {
					s.expectSeen(protocol, from, to, port)
					continue
				}
				seen, err := from.ask(s.ctx, protocol, to.address, port, "clientip")
				if source, _, _ := net.SplitHostPort(seen); err != nil || source == from.address {
					s.t.Errorf("%s: %s asks itself through its node and sees %q, %v", protocol, from.name, seen, err)
				}
			}
		}
		// The node itself, by its loopback address.
		got, err := witness.Get(s.ctx, s.node(pod.Spec.NodeName).Host, "http://127.0.0.1:"+port+"/hostname")
		if err != nil || got != pod.Name {
			s.t.Errorf("127.0.0.1:%s on %s answers %q, %v, want %s", port, pod.Spec.NodeName, got, err, pod.Name)
		}
	}
}

// service makes a service of the pods with a ClusterIP and a NodePort.
func (s *stage) service(name string, backends ...*v1.Pod) *v1.Service {
	s.t.Helper()
	for _, pod := range backends {
		pod := s.get(pod.Name)
		pod.Labels["service"] = name
		_, err := s.Client.CoreV1().Pods(s.name).Update(s.ctx, pod, metav1.UpdateOptions{})
		s.must(err)
	}
	service, err := s.Client.CoreV1().Services(s.name).Create(s.ctx, &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeNodePort, Selector: map[string]string{"service": name},
			Ports: []v1.ServicePort{{Port: 80, TargetPort: intstr.Parse(witness.Port)}},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	return service
}

// nodePort is the service's port on every node.
func nodePort(service *v1.Service) string { return strconv.Itoa(int(service.Spec.Ports[0].NodePort)) }

// expectSource makes a service of a pod and checks that the pod sees others that ask it through
// the service's ClusterIP, and floating pods also by the NodePort of their own node, by their own
// addresses. kube-proxy masquerades other pods at a NodePort, and a pod that asks itself, which
// gets an answer.
func (s *stage) expectSource(service string, backend *v1.Pod, askers []party) {
	s.t.Helper()
	made := s.service(service, backend)
	for _, from := range askers {
		at := []netip.AddrPort{netip.MustParseAddrPort(net.JoinHostPort(made.Spec.ClusterIP, "80"))}
		if asker := s.get(from.name); asker.Spec.SchedulerName == berthScheduler {
			at = append(at, netip.MustParseAddrPort(net.JoinHostPort(asker.Status.HostIP, nodePort(made))))
		}
		for _, to := range at {
			s.eventually(fmt.Sprintf("%s reaches the service of %s at %s", from.name, backend.Name, to), func() error {
				seen, err := from.ask(s.ctx, "http", to.Addr().String(), strconv.Itoa(int(to.Port())), "clientip")
				if err != nil || from.name == backend.Name {
					return err
				}
				if source, _, err := net.SplitHostPort(seen); err != nil || source != from.address {
					s.t.Fatalf("%s sees %s through a service at %s as %q, want its own address %s", backend.Name, from.name, to, seen, from.address)
				}
				return nil
			})
		}
	}
}

// expectService makes a service of the pods and checks that all who ask it by its ClusterIP
// reach each of them in time, and at every node's NodePort one of them.
func (s *stage) expectService(service string, backends []*v1.Pod, askers []party) *v1.Service {
	s.t.Helper()
	var want []string
	for _, pod := range backends {
		want = append(want, pod.Name)
	}
	made := s.service(service, backends...)
	for _, from := range askers {
		seen := map[string]bool{}
		s.eventually(from.name+" reaches all pods of the service", func() error {
			answer, err := from.ask(s.ctx, "http", made.Spec.ClusterIP, "80", "hostname")
			if err != nil {
				return err
			}
			if !slices.Contains(want, answer) {
				s.t.Fatalf("%s answers at the service", answer)
			}
			seen[answer] = true
			if len(seen) < len(want) {
				return fmt.Errorf("only %v answered", seen)
			}
			return nil
		})
		s.expectNodePorts(made, from)
	}
	return made
}

// expectNodePorts checks that a pod of the service answers at its port of every node.
func (s *stage) expectNodePorts(service *v1.Service, from party) {
	s.t.Helper()
	for _, node := range s.Cluster.Nodes() {
		s.eventually(from.name+" reaches the service's port of "+node.Name(), func() error {
			answer, err := from.ask(s.ctx, "http", node.IP.String(), nodePort(service), "hostname")
			if err == nil && s.get(answer).Labels["service"] != service.Name {
				s.t.Fatalf("%s answers at the service's port of %s", answer, node.Name())
			}
			return err
		})
	}
}
