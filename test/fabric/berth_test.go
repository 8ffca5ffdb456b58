// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/veth/wire"
	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/speaker/status"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/docs"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// cluster is an API server with the chart's objects for berth-speaker, and the program.
type cluster struct {
	*simulation.World
	t *testing.T
	// folder is one that every user can read.
	folder string
	token  string
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{World: simulation.New(t, lab.ControlPlaneOptions{}), t: t}
	chart, err := deploy.Chart()
	if err != nil {
		t.Fatal(err)
	}
	objects, err := deploy.ChartObjects(c.Ctx, t.Output(), c.System, filepath.Join(chart, "ci", "speaker.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	objects = slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool {
		return !strings.Contains(o.GetName(), "speaker") || o.GetKind() == "PodMonitor" || o.GetKind() == "DaemonSet"
	})
	if err := deploy.Apply(c.Ctx, c.Config, objects); err != nil {
		t.Fatal(err)
	}
	if c.folder, err = os.MkdirTemp("", "berth-speaker-"); err != nil { //nolint:usetesting // The speaker's user must be able to enter it: the folder above a TempDir is its owner's.
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(c.folder) })
	if err := os.Chmod(c.folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := deploy.Compile(c.Ctx, c.folder, []string{status.Name}); err != nil {
		t.Fatal(err)
	}
	c.token = c.tokenOf(status.Name, "")
	return c
}

// tokenOf makes a token of a ServiceAccount in Berth's namespace, for an audience; empty: the API
// server.
func (c *cluster) tokenOf(account, audience string) string {
	c.t.Helper()
	request := &authenticationv1.TokenRequest{}
	if audience != "" {
		request.Spec.Audiences = []string{audience}
	}
	token, err := c.Kube.CoreV1().ServiceAccounts(c.System).CreateToken(c.Ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return token.Status.Token
}

// peer applies a BGPPeer.
func (c *cluster) peer(peer *v1alpha1.BGPPeer) {
	c.t.Helper()
	if _, err := c.Berth.BGPPeers.Create(c.Ctx, peer, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// speaker is berth-speaker on a node, as user 65532 without capabilities.
type speaker struct {
	c    *cluster
	t    *testing.T
	host *netnstest.Host
	node string
	// folder has its kubeconfig, passwords and log.
	folder string
	args   []string
	// capabilities are those of a chart's value.
	capabilities []uintptr
	run          *exec.Cmd
}

const nobody = 65532

// speak starts the speaker of a node that has an address and labels, with a way from its network to
// the API server.
func (c *cluster) speak(t *testing.T, host *netnstest.Host, node, address string, labels map[string]string) *speaker {
	t.Helper()
	if _, err := c.Kube.CoreV1().Nodes().Create(c.Ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: labels}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s := &speaker{c: c, t: t, host: host, node: node, folder: filepath.Join(c.folder, node)}
	passwords := filepath.Join(s.folder, "passwords")
	if err := os.MkdirAll(passwords, 0o755); err != nil {
		t.Fatal(err)
	}
	config := rest.CopyConfig(c.Config)
	if err := rest.LoadTLSFiles(config); err != nil {
		t.Fatal(err)
	}
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["c"] = &clientcmdapi.Cluster{Server: "https://" + forward(t, host, strings.TrimPrefix(config.Host, "https://")), CertificateAuthorityData: config.CAData}
	kubeconfig.AuthInfos["u"] = &clientcmdapi.AuthInfo{Token: c.token}
	kubeconfig.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	kubeconfig.CurrentContext = "x"
	file := filepath.Join(s.folder, "kubeconfig")
	if err := clientcmd.WriteToFile(*kubeconfig, file); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	s.args = []string{"--kubeconfig=" + file, "--node-name=" + node, "--node-ip=" + address, "--password-dir=" + passwords}
	t.Cleanup(func() {
		s.end(syscall.SIGKILL)
		if t.Failed() {
			log, err := os.ReadFile(filepath.Join(s.folder, "log"))
			t.Logf("berth-speaker of %s: %v\n%s", node, err, log)
		}
	})
	s.start()
	return s
}

// forward leads connections from a namespace to an address of the test's own, and returns where.
func forward(t *testing.T, from *netnstest.Host, to string) string {
	t.Helper()
	var listener net.Listener
	from.Run(func() (err error) { listener, err = net.Listen("tcp", "127.0.0.1:0"); return err })
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				server, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer server.Close()
				go func() { _, _ = io.Copy(server, conn); _ = server.Close() }()
				_, _ = io.Copy(conn, server)
			}()
		}
	}()
	return listener.Addr().String()
}

func (s *speaker) start() {
	s.t.Helper()
	log, err := os.OpenFile(filepath.Join(s.folder, "log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close()
	s.run = exec.Command(filepath.Join(s.c.folder, status.Name), s.args...)
	s.run.Stdout, s.run.Stderr = log, log
	s.run.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}, AmbientCaps: s.capabilities}
	s.host.Run(s.run.Start)
}

// end sends a signal, and waits for the end of the process.
func (s *speaker) end(signal syscall.Signal) {
	if s.run == nil {
		return
	}
	_ = s.run.Process.Signal(signal)
	_ = s.run.Wait()
	s.run = nil
}

func (s *speaker) password(of, text string) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.folder, "passwords", of), []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// get asks the speaker at its port, with a token for whoever may ask.
func (s *speaker) get(path, token string) (code int, text string, err error) {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // it signs its certificate itself
		DialContext: func(_ context.Context, network, address string) (conn net.Conn, err error) {
			err = s.host.Try(func() error { conn, err = net.Dial(network, address); return err })
			return conn, err
		},
	}}
	request, err := http.NewRequest(http.MethodGet, "https://127.0.0.1:10270"+path, nil)
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		request.Header.Set(agentpod.TokenHeader, "Bearer "+token)
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

// established waits until the speaker has a session with its only router.
func (s *speaker) established() {
	s.t.Helper()
	s.awaitPeers(func(peers []status.Peer) bool { return len(peers) == 1 && peers[0].Established })
}

// awaitPeers waits until the speaker's sessions are as they should, and returns them.
func (s *speaker) awaitPeers(should func([]status.Peer) bool) []status.Peer {
	s.t.Helper()
	token := s.c.tokenOf(agentpod.Diagnosis, status.Audience(s.node))
	var said status.Status
	netnstest.Eventually(s.t, func() error {
		code, text, err := s.get(status.Path, token)
		if err != nil || code != http.StatusOK {
			return fmt.Errorf("%d %s: %w", code, text, err)
		}
		said = status.Status{}
		if err := json.Unmarshal([]byte(text), &said); err != nil {
			return err
		}
		if !should(said.Peers) {
			return fmt.Errorf("the sessions of %s are not as they should: %s", s.node, text)
		}
		return nil
	})
	return said.Peers
}

// podOn has addresses on a node since a time, as the agent would wire them, and answers with its
// name.
func podOn(t *testing.T, node *netnstest.Host, name string, since time.Time, addresses ...string) wire.Spec {
	t.Helper()
	host := netnstest.New(t)
	spec := wire.Spec{ContainerID: name, IfName: "eth0", NetNS: host.Path(), Uplink: "eth0", MAC: v1alpha1.MACOf(netip.MustParseAddr(addresses[0])), Advertised: map[netip.Addr]time.Time{}}
	for _, address := range addresses {
		addr := netip.MustParseAddr(address)
		subnet, err := addr.Prefix(addr.BitLen() * 3 / 4) // a /24, a /96
		if err != nil {
			t.Fatal(err)
		}
		spec.Addresses = append(spec.Addresses, api.Address{Address: addr, Subnet: subnet, Routed: true})
		spec.Advertised[addr] = since
	}
	node.Run(func() error { _, err := wire.New("").Setup(spec); return err })
	Answer(t, host, name)
	return spec
}

var since = time.Date(2026, time.November, 27, 7, 0, 0, 0, time.UTC)

// Berth's own speaker, between FRRs.
func TestBerthSpeaker(t *testing.T) {
	t.Parallel()
	netnstest.Need(t)
	c := newCluster(t)
	t.Run("page", func(t *testing.T) { t.Parallel(); testPage(t, c) })
	t.Run("two announce", func(t *testing.T) { t.Parallel(); testNewest(t, c) })
	t.Run("a rack's router and a speaker go", func(t *testing.T) { t.Parallel(); testGone(t, c) })
	t.Run("graceful shutdown", func(t *testing.T) { t.Parallel(); testShutdown(t, c) })
}

// The page's BGPPeer and the page's FRR have a session, with TTL security and a password; a client
// that asks all the time loses nothing when the speaker is updated or crashes.
func testPage(t *testing.T, c *cluster) {
	peer, config := pageOf(t)
	router, node, client := netnstest.New(t), netnstest.New(t), netnstest.New(t)
	forwards(router)
	forwards(node)
	join(router, node, "nodes", "eth0", "10.11.0.", "2001:db8:11::", "2")
	join(router, client, "client", "eth0", "10.12.0.", "2001:db8:12::", "2")
	node.IP("route", "add", "default", "via", "10.11.0.1")
	node.IP("-6", "route", "add", "default", "via", "2001:db8:11::1")
	client.IP("route", "add", "default", "via", "10.12.0.1")
	client.IP("-6", "route", "add", "default", "via", "2001:db8:12::1")
	frr, err := StartFRR(t.Context(), router.Try, strings.Replace(config, " neighbor nodes remote-as", " neighbor nodes password secret\n neighbor nodes remote-as", 1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(frr.Log())
		}
		if err := frr.Stop(); err != nil {
			t.Error(err)
		}
	})
	c.peer(peer)
	s := c.speak(t, node, "page", "10.11.0.2", peer.Spec.NodeSelector.MatchLabels)
	podOn(t, node, "pod", since, "10.99.0.5", "2001:db8:99::5")
	podOn(t, node, "other", since, "10.97.0.5") // no export has it
	netnstest.Eventually(t, func() error {
		if log, err := os.ReadFile(filepath.Join(s.folder, "log")); err != nil || !strings.Contains(string(log), "the router must have no password for this node") {
			return errors.Join(err, errors.New("the log does not say that the password may be wrong"))
		}
		return nil
	})
	if code, text, err := s.get("/readyz", ""); err != nil || code != http.StatusServiceUnavailable {
		t.Errorf("ready without a session: %d %s, %v", code, text, err)
	}
	if code, text, err := s.get(status.Path, ""); err != nil || code != http.StatusUnauthorized {
		t.Errorf("a stranger is told: %d %s, %v", code, text, err)
	}
	s.password(peer.Name, "secret")
	s.established()
	netnstest.Eventually(t, func() error { return errors.Join(leadsTo(router, "10.99.0.5"), leadsTo(router, "2001:db8:99::5")) })
	if leadsTo(router, "10.97.0.5") == nil {
		t.Error("the router has an address that no export names")
	}
	calls, calls6 := Call(t, client, "10.99.0.5"), Call(t, client, "2001:db8:99::5")
	for _, each := range []*Caller{calls, calls6} {
		each.Await("pod")
	}
	for _, how := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		mark, mark6 := calls.Sent(), calls6.Sent()
		s.end(how)
		s.start()
		s.established()
		// End-of-RIB comes after the paths; what the router forgets then it forgets now.
		calls.Only("pod")
		calls6.Only("pod")
		for _, of := range []struct {
			caller *Caller
			mark   uint64
		}{{calls, mark}, {calls6, mark6}} {
			if lost, longest := of.caller.Lost(of.mark); lost > 0 {
				t.Errorf("%v: lost %d of %d calls, %d ms at a time at most", how, lost, of.caller.Sent()-of.mark, longest)
			}
		}
		t.Logf("%v: %d calls were answered by the pod while the speaker was away", how, calls.Sent()-mark)
	}
	// Without the next one the router forgets the paths.
	s.end(syscall.SIGKILL)
	netnstest.Eventually(t, func() error {
		if leadsTo(router, "10.99.0.5") == nil || leadsTo(router, "2001:db8:99::5") == nil {
			return errors.New("the router keeps the paths of a node without a speaker")
		}
		return nil
	})
}

// leadsTo returns an error where a router does not have a route of its own for an address.
func leadsTo(router *netnstest.Host, address string) error {
	family, bits := "-4", "/32"
	if strings.Contains(address, ":") {
		family, bits = "-6", "/128"
	}
	if out := router.IP(family, "route", "show", address+bits); !strings.Contains(out, "dev nodes") {
		return fmt.Errorf("the router does not lead %s to the nodes: %q", address, out)
	}
	return nil
}

// pageOf returns the BGPPeer of docs/how-to/bgp.md, and the router's configuration of FRR.
func pageOf(t *testing.T) (*v1alpha1.BGPPeer, string) {
	t.Helper()
	bin, err := lab.BinDir()
	if err != nil {
		t.Fatal(err)
	}
	page, err := docs.Read(filepath.Join(bin, "../.."), "docs/how-to/bgp.md")
	if err != nil {
		t.Fatal(err)
	}
	var peer *v1alpha1.BGPPeer
	for _, block := range page.Blocks {
		if strings.Contains(block.Text, "kind: BGPPeer") {
			peer = &v1alpha1.BGPPeer{}
			if err := yaml.UnmarshalStrict([]byte(block.Text), peer); err != nil {
				t.Fatal(err)
			}
		}
	}
	if peer == nil {
		t.Fatal("the page has no BGPPeer")
	}
	return peer, config(t, "router-frr.conf")
}

// Two nodes announce an address: routers that compare MED prefer the one to which it came later,
// over two racks.
func testNewest(t *testing.T, c *cluster) {
	w := newWorld(t, true)
	w.speakIn(c, "newest", 15*time.Second)
	old := w.pod(w.Racks[0], "old", since)
	calls, calls6 := Call(t, w.client, address4), Call(t, w.client, address6)
	for _, each := range []*Caller{calls, calls6} {
		each.Await("old")
	}
	w.pod(w.Racks[1], "new", since.Add(time.Second))
	for _, each := range []*Caller{calls, calls6} {
		each.Await("new")
		each.Only("new")
	}
	w.Racks[0].Node.Run(func() error { return wire.New("").Teardown(old) })
	for _, each := range []*Caller{calls, calls6} {
		each.Only("new")
	}
	w.AwaitLeads(address4, "2")
	w.AwaitLeads(address6, "2")
}

// speakIn starts the speakers of all racks: nodes and BGPPeers have the name, with the rack's
// number. Routers keep the paths of a speaker that is away for as long.
func (w *world) speakIn(c *cluster, name string, kept time.Duration) []*speaker {
	w.t.Helper()
	var speakers []*speaker
	for _, r := range w.Racks {
		of := fmt.Sprintf("%s-%d", name, r.number)
		labels := map[string]string{"speaks": of}
		c.peer(&v1alpha1.BGPPeer{ObjectMeta: metav1.ObjectMeta{Name: of}, Spec: v1alpha1.BGPPeerSpec{
			NodeSelector: &metav1.LabelSelector{MatchLabels: labels}, LocalASN: int64(65200 + r.number), Multihop: 2, // the page's routers have no TTL security
			Peer:            v1alpha1.BGPRouter{Address: fmt.Sprintf("10.11.%d.1", r.number), ASN: int64(65100 + r.number)},
			GracefulRestart: v1alpha1.BGPGracefulRestart{Time: &metav1.Duration{Duration: kept}},
			Export:          []v1alpha1.BGPExport{{Prefixes: []string{Subnet4, Subnet6}, Newest: true}},
		}})
		s := c.speak(w.t, r.Node, of, r.Address, labels)
		s.established()
		speakers = append(speakers, s)
	}
	return speakers
}

// A rack's router that was away leads to its node again. A speaker that went for good leaves a path
// behind, which routers keep, as graceful restart has them do: they prefer the path of the node to
// which the address came later, also after the first is back.
func testGone(t *testing.T, c *cluster) {
	w := newWorld(t, true)
	speakers := w.speakIn(c, "gone", time.Hour)
	w.pod(w.Racks[0], "old", since)
	calls, calls6 := Call(t, w.client, address4), Call(t, w.client, address6)
	only := func(name string) {
		t.Helper()
		for _, each := range []*Caller{calls, calls6} {
			each.Await(name)
			each.Only(name)
		}
	}
	only("old")
	w.Routers[w.Racks[0].ToR].Kill()
	w.AwaitLeads(address4)
	w.AwaitLeads(address6)
	w.reload(w.Racks[0].ToR)
	w.AwaitLeads(address4, "1")
	w.AwaitLeads(address6, "1")
	speakers[0].established()
	only("old")
	speakers[0].end(syscall.SIGKILL)
	only("old")
	w.pod(w.Racks[1], "new", since.Add(time.Second))
	only("new")
	speakers[0].start()
	speakers[0].established()
	only("new")
}

// Routers that compare no metric share clients out between two nodes. A node whose paths have the
// community GRACEFUL_SHUTDOWN (RFC 8326) gets none of them any more, and nothing is lost, neither
// then nor when it withdraws.
func testShutdown(t *testing.T, c *cluster) {
	w := newWorld(t, false)
	w.speakIn(c, "shutdown", 15*time.Second)
	old := w.pod(w.Racks[0], "old", since)
	w.pod(w.Racks[1], "new", since)
	w.AwaitLeads(address4, "1", "2")
	w.AwaitLeads(address6, "1", "2")
	calls, calls6 := Call(t, w.client, address4), Call(t, w.client, address6)
	for _, each := range []*Caller{calls, calls6} {
		if who := each.Answering(each.Sent()); who["old"] == 0 || who["new"] == 0 {
			t.Fatalf("the flows are answered by %v, want both", who)
		}
	}
	mark, mark6 := calls.Sent(), calls6.Sent()
	peer, err := c.Berth.BGPPeers.Get(c.Ctx, "shutdown-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	peer.Spec.Export[0].Communities = []string{"65535:0"}
	if _, err := c.Berth.BGPPeers.Update(c.Ctx, peer, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	only := func() {
		t.Helper()
		for _, each := range []*Caller{calls, calls6} {
			each.Await("new")
			each.Only("new")
		}
	}
	only()
	w.Racks[0].Node.Run(func() error { return wire.New("").Teardown(old) })
	w.AwaitLeads(address4, "2")
	w.AwaitLeads(address6, "2")
	only()
	for _, of := range []struct {
		caller *Caller
		mark   uint64
	}{{calls, mark}, {calls6, mark6}} {
		if lost, longest := of.caller.Lost(of.mark); lost > 0 {
			t.Errorf("lost %d of %d calls, %d ms at a time at most", lost, of.caller.Sent()-of.mark, longest)
		}
	}
}
