// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/berth-dev/berth/agent/answering"
	"github.com/berth-dev/berth/agent/answering/datagram"
	"github.com/berth-dev/berth/agent/answering/segment"
	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/conflict"
	"github.com/berth-dev/berth/ipam/agentca"
	"github.com/berth-dev/berth/ipam/agentca/signer"
)

// moves gives an address to pods of two nodes by turns.
type moves struct {
	t       *testing.T
	name    string
	address string
	round   int
}

// pod makes the next pod, which holds the address, on a node.
func (m *moves) pod(n *node) (*corev1.Pod, *container) {
	m.round++
	pod := createPod(m.t, n.name, fmt.Sprintf("%s-%d", m.name, m.round), m.address)
	bind(m.t, m.address, pod)
	return pod, newContainer(m.t, fmt.Sprintf("%s-%d", n.name, m.round), pod)
}

// A node loses the API server, and somebody deletes its pod by force. The pod's address is answered
// for by its new node, and by that alone, from the first answer on.
func TestAPILost(t *testing.T) {
	t.Parallel()
	network := newNetwork(t)
	old, fresh := network.newNode(t, "lost-a", "10.0.60.11"), network.newNode(t, "lost-b", "10.0.60.12")
	client := newAsker(t, network.client, "10.70.0.50", "10.70.11.5")
	m := &moves{t: t, name: "lost", address: "10.70.11.5"}
	pod, c := m.pod(old)
	old.mustAdd(c)
	for round := range 2 {
		began := time.Now()
		client.await(t, mac(old), began, 3)
		old.IP("route", "add", "blackhole", apiAddress+"/32")
		deletePod(t, pod.Name)
		nextPod, next := m.pod(fresh)
		fresh.mustAdd(next)
		added := time.Now()
		client.await(t, mac(fresh), added, 30)
		if answers := client.of(mac(old), added); len(answers) > 0 {
			t.Errorf("round %d: the node without the API server answered %d more times, the last one after %v", round, len(answers), answers[len(answers)-1].Sub(added))
		}
		old.IP("route", "del", "blackhole", apiAddress+"/32")
		old.mustDel(c)
		old, fresh, pod, c = fresh, old, nextPod, next
	}
	old.mustDel(c)
}

// The agent of a node hangs, and somebody deletes its pod by force: the node answers on. The pod's
// new node does not answer beside it, says why, and does so once the agent goes on.
func TestAgentHangs(t *testing.T) {
	t.Parallel()
	network := newNetwork(t)
	heard := network.hellos(t, authority(t))
	old, fresh := network.newNode(t, "hangs-a", "10.0.60.11"), network.newNode(t, "hangs-b", "10.0.60.12")
	known(t, heard, old, fresh)
	client := newAsker(t, network.client, "10.70.0.50", "10.70.12.5")
	m := &moves{t: t, name: "hangs", address: "10.70.12.5"}
	pod, c := m.pod(old)
	old.mustAdd(c)
	client.await(t, mac(old), time.Time{}, 3)
	if err := old.agent.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	deletePod(t, pod.Name)
	wasOn(t, m.address, old.name)
	_, next := m.pod(fresh)
	_, err := fresh.add(next)
	if err == nil || !strings.Contains(err.Error(), "still answers for 10.70.12.5") {
		t.Errorf("ADD beside a node that answers: %v", err)
	}
	if answers := client.of(mac(fresh), time.Time{}); len(answers) > 0 {
		t.Errorf("the new node answered %d times", len(answers))
	}
	if err := old.agent.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		_, err := fresh.add(next)
		return err
	})
	began := time.Now()
	client.await(t, mac(fresh), began, 10)
	if answers := client.of(mac(old), began); len(answers) > 0 {
		t.Errorf("the old node answered %d more times", len(answers))
	}
	fresh.mustDel(next)
}

// known waits until a node, which is started after the other, calls that one and has heard its
// hello.
func known(t *testing.T, heard <-chan answering.Message, other, node *node) {
	t.Helper()
	for called := false; ; {
		var m answering.Message
		select {
		case m = <-heard:
		case <-time.After(time.Minute):
			t.Fatal("the nodes do not say hello to each other")
		}
		if called && m.Kind == answering.Hello && m.From.Name == other.name {
			return
		}
		called = called || m.Kind == answering.Call && m.From.Name == node.name
	}
}

// A node is cut off from the pools' network, and keeps its carrier and its other network, but for
// the API server. Somebody deletes its pod by force. It falls silent before the pod's new node
// answers, and answers no more when it is heard again.
func TestOtherNetwork(t *testing.T) {
	t.Parallel()
	network, other := newNetwork(t), netnstest.NewWire(t)
	heard := network.hellos(t, authority(t))
	join := func(name, address string) *node {
		internalIP := strings.Replace(address, "10.0.60.", "10.0.61.", 1)
		n := network.newNode(t, name, address, "--node-ip="+internalIP)
		other.Plug(n.Host, "eth1", netip.MustParsePrefix(internalIP+"/24"))
		return n
	}
	old := join("other-a", "10.0.60.11")
	fresh := join("other-b", "10.0.60.12")
	known(t, heard, old, fresh)
	client := newAsker(t, network.client, "10.70.0.50", "10.70.13.5")
	m := &moves{t: t, name: "other", address: "10.70.13.5"}
	pod, c := m.pod(old)
	old.mustAdd(c)
	for round := range 2 {
		began := time.Now()
		client.await(t, mac(old), began, 3)
		network.wire.Block(old.port, true)
		deletePod(t, pod.Name)
		wasOn(t, "10.70.13.5", old.name)
		nextPod, next := m.pod(fresh)
		asked := time.Now()
		fresh.mustAdd(next)
		added := time.Now()
		t.Logf("round %d: ADD took %v", round, added.Sub(asked))
		if entries := old.IP("neigh", "show", "proxy"); strings.Contains(entries, "10.70.13.5") {
			t.Errorf("round %d: the new node answers, and the old one would if somebody asked it: %s", round, entries)
		}
		network.wire.Block(old.port, false)
		client.await(t, mac(fresh), added, 30)
		if answers := client.of(mac(old), added); len(answers) > 0 {
			t.Errorf("round %d: the old node answered %d more times, the last one %v after the new one began", round, len(answers), answers[len(answers)-1].Sub(added))
		}
		old.mustDel(c)
		old, fresh, pod, c = fresh, old, nextPod, next
	}
	old.mustDel(c)
}

// A host of the segment asserts a pod's address by the newest record of all. That changes nothing,
// also as if a node was broken into: the API server, which answers, is asked first.
func TestForgedAssertions(t *testing.T) {
	t.Parallel()
	network := newNetwork(t)
	n := network.newNode(t, "forged-a", "10.0.60.11")
	m := &moves{t: t, name: "forged", address: "10.70.14.5"}
	_, c := m.pod(n)
	n.mustAdd(c)
	rogue := answering.Node{Name: "rogue", UID: "r"}
	forged := []answering.Message{{Kind: answering.Assert, From: rogue, Address: netip.MustParseAddr(m.address), Version: 1 << 60}}
	others, err := agentca.New("others")
	if err != nil {
		t.Fatal(err)
	}
	stranger, insider := network.open(t, others, rogue), network.open(t, authority(t), rogue)
	// silences returns how many of the questions have no answer while the address is asserted 20
	// times.
	silences := func(s *segment.Segment) int {
		client := newAsker(t, network.client, "10.70.0.50", m.address)
		for range 20 {
			network.client.Run(func() error { return s.Send(forged) })
			client.await(t, mac(n), time.Now(), 1)
		}
		return client.unanswered(t, mac(n))
	}
	for who, from := range map[string]*segment.Segment{"a host without a certificate of the cluster": stranger, "a host with one": insider} {
		if got := silences(from); got > 0 {
			t.Errorf("%s: %d questions have no answer", who, got)
		}
	}
	n.mustDel(c)
}

// An agent says which others it hears: the network keeps two of three from each other, as isolated
// ports of a switch do.
func TestHears(t *testing.T) {
	t.Parallel()
	network := newNetwork(t)
	one, two, three := network.newNode(t, "hears-a", "10.0.60.11"), network.newNode(t, "hears-b", "10.0.60.12"), network.newNode(t, "hears-c", "10.0.60.13")
	for _, n := range []*node{one, three} {
		n.stop()
		network.wire.Isolate(n.port)
	}
	one.start()
	three.start()
	want := map[*node][]*node{one: {two}, two: {one, three}, three: {two}}
	// A node that hears no other one yet has called it, and the third one later.
	for n, others := range want {
		var names []string
		eventually(t, func() error {
			in := n.inspection()
			if len(in.Segments) != 1 || in.Segments[0].Link != "eth0" || in.Segments[0].Error != "" || len(in.Segments[0].Nodes) < len(others) {
				return fmt.Errorf("%s hears %+v", n.name, in.Segments)
			}
			names = nil
			for i, heard := range in.Segments[0].Nodes {
				names = append(names, heard.Name)
				if i < len(others) && heard.MAC != mac(others[i]) {
					t.Errorf("%s hears %s by the MAC %s", n.name, heard.Name, heard.MAC)
				}
			}
			return nil
		})
		var all []string
		for _, other := range others {
			all = append(all, other.name)
		}
		if !slices.Equal(names, all) {
			t.Errorf("%s hears %v, want %v", n.name, names, all)
		}
		out, err := n.command("berth-agent", "probe", "--socket", n.dir+"/run/agent.sock", "-o", "json").Output()
		var said inquiry.Carried
		if err != nil || json.Unmarshal(out, &said) != nil || len(said.Hears) != 1 || !slices.EqualFunc(said.Hears[0].Nodes, all, func(n inquiry.Neighbour, name string) bool { return n.Name == name }) {
			t.Errorf("%s: %s, %v", n.name, out, err)
		}
	}
}

// An agent knows the UID of its node by the token that a kubelet brings it, gets a certificate of
// it from the controller's signer, and is heard by it.
func TestNodeUID(t *testing.T) {
	t.Parallel()
	network := newNetwork(t)
	const name = "uid-a"
	kube := apiOf(t).kube
	a := network.runSigner(t)
	heard := network.hellos(t, a)
	object, err := kube.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = kube.CoreV1().Nodes().Delete(ctxOf(t), name, metav1.DeleteOptions{}) })
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "agent-of-" + name, Namespace: "default"}}
	if _, err := kube.CoreV1().ServiceAccounts("default").Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := kube.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: account.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: account.Name, Namespace: "default"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := podObject(name, account.Name)
	pod.Spec.ServiceAccountName = account.Name
	pod = create(t, pod)
	token, err := kube.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), account.Name, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n := network.newNode(t, name, "10.0.60.11")
	n.stop()
	config, err := clientcmd.Load([]byte(kubeconfig(t)))
	if err != nil {
		t.Fatal(err)
	}
	n.write("token", token.Status.Token)
	for user := range config.AuthInfos {
		config.AuthInfos[user] = &clientcmdapi.AuthInfo{TokenFile: n.dir + "/token"}
	}
	raw, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatal(err)
	}
	n.write("kubeconfig", string(raw))
	n.write("agent-ca/ca.crt", string(agentca.FormatBundle([]*x509.Certificate{a.Certificate})))
	if err := os.Remove(n.dir + "/run/certificate.pem"); err != nil {
		t.Fatal(err)
	}
	n.start()
	want, patience := answering.Node{Name: name, UID: string(object.UID)}, time.After(time.Minute)
	for from := (answering.Node{}); from != want; {
		select {
		case m := <-heard:
			from = m.From
		case <-patience:
			t.Fatalf("the agent says that it is %+v, want %+v", from, want)
		}
	}
}

// wasOn notes the node that had an address last, as the scheduler does.
func wasOn(t *testing.T, address, node string) {
	t.Helper()
	last := fmt.Appendf(nil, `{"spec":{"lastNode":{"name":%q,"uid":"u"}}}`, node)
	if _, err := apiOf(t).ips.Patch(t.Context(), nameOf(address), types.MergePatchType, last, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// runSigner signs requests of agents as the controller does, until the test ends, and returns the
// authority.
func (n *network) runSigner(t *testing.T) *agentca.Authority {
	t.Helper()
	kube := apiOf(t).kube
	var cluster string
	eventually(t, func() error {
		namespace, err := kube.CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceSystem, metav1.GetOptions{})
		if err == nil {
			cluster = string(namespace.UID)
		}
		return err
	})
	a, err := agentca.New(cluster)
	if err != nil {
		t.Fatal(err)
	}
	certificate, key, err := a.PEM()
	if err != nil {
		t.Fatal(err)
	}
	about := metav1.ObjectMeta{Name: "berth-agent-ca", Namespace: "default"}
	if _, err := kube.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: about, Data: map[string][]byte{"ca.crt": certificate, "ca.key": key}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := kube.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: about}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { signer.New(kube, "default").Run(ctx) })
	t.Cleanup(func() {
		stop()
		group.Wait()
	})
	return a
}

// hellos hears the nodes of the network that have a certificate of an authority.
func (n *network) hellos(t *testing.T, a *agentca.Authority) <-chan answering.Message {
	t.Helper()
	s := n.open(t, a, answering.Node{Name: "listener"})
	heard := make(chan answering.Message, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		if err := s.Run(ctx, nil, func(m answering.Message) { heard <- m }, func(conflict.Answer) {}, func(conflict.Conflict) {}); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		group.Wait()
	})
	return heard
}

// open has the client take part in what the nodes say, as a node with a certificate of an
// authority.
func (n *network) open(t *testing.T, a *agentca.Authority, as answering.Node) *segment.Segment {
	t.Helper()
	text := certificateOf(t, a, as)
	key, err := agentca.ParseKey(text)
	if err != nil {
		t.Fatal(err)
	}
	certificates, err := agentca.ParseBundle(text[bytes.Index(text, []byte("-----BEGIN CERTIFICATE")):])
	if err != nil {
		t.Fatal(err)
	}
	identity, err := datagram.NewIdentity(certificates[0], key)
	if err != nil {
		t.Fatal(err)
	}
	codec, err := datagram.NewCodec([]*x509.Certificate{a.Certificate}, identity)
	if err != nil {
		t.Fatal(err)
	}
	var s *segment.Segment
	n.client.Run(func() error {
		link, err := netlinksafe.LinkByName("eth0")
		if err == nil {
			s, err = segment.Open(link.Attrs().Index, segment.Options{Codec: func() (*datagram.Codec, error) { return codec, nil }})
		}
		return err
	})
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}
