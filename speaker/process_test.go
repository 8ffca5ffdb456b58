// SPDX-License-Identifier: Apache-2.0

package speaker

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"
	"k8s.io/component-base/metrics"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/wakeup"
	"github.com/berth-dev/berth/speaker/bfd"
	"github.com/berth-dev/berth/speaker/bfd/machine"
	"github.com/berth-dev/berth/speaker/status"
)

// A network namespace is of a thread, and GoBGP dials and listens in many: speakers and routers of
// these tests are processes. They are this program, which finds its role in the environment, and
// answer at a socket in their folder.
const (
	envRole   = "BERTH_TEST_SPEAKER_ROLE"
	envFolder = "BERTH_TEST_SPEAKER_FOLDER"
)

func TestMain(m *testing.M) {
	role, folder := os.Getenv(envRole), os.Getenv(envFolder)
	run := map[string]func(ctx context.Context, group *sync.WaitGroup, folder string) (http.Handler, error){"speaker": speak, "router": route}[role]
	if run == nil {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var group sync.WaitGroup
	handler, err := run(ctx, &group, folder)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	socket := filepath.Join(folder, "socket")
	_ = os.Remove(socket)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	go func() { _ = http.Serve(listener, handler) }() //nolint:gosec // a test's
	<-ctx.Done()
	group.Wait()
}

// configuration is the file "configuration" of a speaker, which reads it again at SIGHUP.
type configuration struct {
	Node   string              `json:"node"`
	Router netip.Addr          `json:"router"`
	Peers  []*v1alpha1.BGPPeer `json:"peers"`
	Labels map[string]string   `json:"labels"`
}

// speak runs a speaker.
func speak(ctx context.Context, group *sync.WaitGroup, folder string) (http.Handler, error) {
	read := func() (c configuration, err error) {
		text, err := os.ReadFile(filepath.Join(folder, "configuration"))
		if err != nil {
			return c, err
		}
		return c, json.Unmarshal(text, &c)
	}
	c, err := read()
	if err != nil {
		return nil, err
	}
	registry := metrics.NewKubeRegistry()
	s := New(Options{Node: c.Node, RouterID: c.Router, Passwords: filepath.Join(folder, "passwords"), Metrics: NewMetrics(registry.MustRegister)})
	registry.CustomMustRegister(s.Collector())
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGHUP)
	go func() {
		for {
			if c, err := read(); err == nil {
				s.Configure(c.Peers, c.Labels)
			}
			<-again
		}
	}()
	group.Go(func() { s.Run(ctx) })
	mux := http.NewServeMux()
	mux.Handle("/", s.Handler())
	mux.Handle("/metrics", metrics.HandlerFor(registry, metrics.HandlerOpts{}))
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := s.Ready(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	return mux, nil
}

// routing is the file "configuration" of a router.
type routing struct {
	ASN        uint32
	ID         string
	Neighbours []neighbour
	// Sends are prefixes that it announces.
	Sends []string
	// Hold is its hold time in seconds, 9 where it is 0. With BFD it watches its neighbours, and
	// resets the session of one that is lost.
	Hold uint64
	BFD  bool
	// Port is where it listens, 179 where it is 0.
	Port int32
}

type neighbour struct {
	Address, Password string
	ASN               uint32
}

// heard is what a router knows.
type heard struct {
	// Best has the best path to each prefix.
	Best map[string]string
	// Gone are the prefixes that had no path at a moment.
	Gone []string
	// Notifications counts those that it received.
	Notifications uint64
	// Preserved counts the families of which its neighbours said that they forwarded before the
	// session.
	Preserved int
}

// router is a GoBGP that listens, and helps in graceful restarts.
type router struct {
	bgp *server.BgpServer

	mu   sync.Mutex
	gone []string
}

// route runs a router.
func route(ctx context.Context, group *sync.WaitGroup, folder string) (http.Handler, error) {
	var c routing
	text, err := os.ReadFile(filepath.Join(folder, "configuration"))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, err
	}
	level := &slog.LevelVar{}
	level.Set(slog.LevelDebug)
	r := &router{bgp: server.NewBgpServer(server.LoggerOption(slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{Level: level})), level))}
	go r.bgp.Serve()
	if err := r.bgp.StartBgp(ctx, &api.StartBgpRequest{Global: &api.Global{Asn: c.ASN, RouterId: c.ID, ListenPort: cmp.Or(c.Port, 179)}}); err != nil {
		return nil, err
	}
	if err := r.bgp.WatchEvent(ctx, server.WatchEventMessageCallbacks{OnBestPath: r.note}, server.WatchBestPath(false)); err != nil {
		return nil, err
	}
	for _, prefix := range c.Sends {
		nlri, err := bgp.NewIPAddrPrefix(netip.MustParsePrefix(prefix))
		if err != nil {
			return nil, err
		}
		hop, err := bgp.NewPathAttributeNextHop(netip.MustParseAddr("0.0.0.0"))
		if err != nil {
			return nil, err
		}
		path := &apiutil.Path{Family: bgp.RF_IPv4_UC, Nlri: nlri, Attrs: []bgp.PathAttributeInterface{bgp.NewPathAttributeOrigin(0), hop}}
		if _, err := r.bgp.AddPath(apiutil.AddPathRequest{Paths: []*apiutil.Path{path}}); err != nil {
			return nil, err
		}
	}
	for _, n := range c.Neighbours {
		peer := &api.Peer{
			Conf:            &api.PeerConf{NeighborAddress: n.Address, PeerAsn: n.ASN, AuthPassword: n.Password},
			Transport:       &api.Transport{PassiveMode: true},
			Timers:          &api.Timers{Config: &api.TimersConfig{HoldTime: cmp.Or(c.Hold, 9), IdleHoldTimeAfterReset: 1}},
			TtlSecurity:     &api.TtlSecurity{Enabled: true, TtlMin: 255},
			GracefulRestart: &api.GracefulRestart{Enabled: true, RestartTime: 20},
		}
		for _, afi := range []api.Family_Afi{api.Family_AFI_IP, api.Family_AFI_IP6} {
			peer.AfiSafis = append(peer.AfiSafis, &api.AfiSafi{
				Config:            &api.AfiSafiConfig{Family: &api.Family{Afi: afi, Safi: api.Family_SAFI_UNICAST}, Enabled: true},
				MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: true}},
			})
		}
		if err := r.bgp.AddPeer(ctx, &api.AddPeerRequest{Peer: peer}); err != nil {
			return nil, err
		}
	}
	if c.BFD {
		group.Go(func() { r.watch(ctx, c.Neighbours) })
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(r.heard()) })
	return mux, nil
}

// watch resets the sessions of neighbours that BFD loses.
func (r *router) watch(ctx context.Context, neighbours []neighbour) {
	changed, sessions := wakeup.New(), bfd.New()
	all, losses := map[string]*bfd.Session{}, map[string]int{}
	for _, n := range neighbours {
		session, err := sessions.Begin(netip.MustParseAddr(n.Address), netip.Addr{}, machine.Config{Interval: 300 * time.Millisecond, Multiplier: 10}, changed.Send)
		if err != nil {
			panic(err)
		}
		all[n.Address] = session
	}
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-changed:
		}
		for address, session := range all {
			s := session.State()
			fmt.Println("BFD", address, s)
			if s.Losses > losses[address] {
				losses[address] = s.Losses
				if err := r.bgp.ResetPeer(ctx, &api.ResetPeerRequest{Address: address}); err != nil {
					fmt.Println("reset the session of a neighbour:", err)
				}
			}
		}
	}
}

func (r *router) note(paths []*apiutil.Path, _ time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, path := range paths {
		if path.Withdrawal {
			r.gone = append(r.gone, path.Nlri.String())
		}
	}
}

func (r *router) heard() heard {
	r.mu.Lock()
	h := heard{Best: map[string]string{}, Gone: slices.Clone(r.gone)}
	r.mu.Unlock()
	for _, family := range []bgp.Family{bgp.RF_IPv4_UC, bgp.RF_IPv6_UC} {
		_ = r.bgp.ListPath(apiutil.ListPathRequest{TableType: api.TableType_TABLE_TYPE_GLOBAL, Family: family}, func(prefix bgp.NLRI, paths []*apiutil.Path) {
			for _, path := range paths {
				if path.Best && path.PeerAddress.IsValid() && !path.PeerAddress.IsUnspecified() {
					h.Best[prefix.String()] = describe(path)
				}
			}
		})
	}
	_ = r.bgp.ListPeer(context.Background(), &api.ListPeerRequest{}, func(peer *api.Peer) {
		h.Notifications += peer.GetState().GetMessages().GetReceived().GetNotification()
		capabilities, _ := apiutil.UnmarshalCapabilities(peer.GetState().GetRemoteCap())
		for _, c := range capabilities {
			restart, ok := c.(*bgp.CapGracefulRestart)
			if !ok {
				continue
			}
			for _, family := range restart.Tuples {
				const forwarded = 0x80 // RFC 4724, section 3
				if family.Flags&forwarded != 0 {
					h.Preserved++
				}
			}
		}
	})
	return h
}

// describe writes the attributes of a path.
func describe(path *apiutil.Path) string {
	var hop, rest string
	for _, a := range path.Attrs {
		switch a := a.(type) {
		case *bgp.PathAttributeNextHop:
			hop = a.Value.String()
		case *bgp.PathAttributeMpReachNLRI:
			hop = a.Nexthop.String()
		case *bgp.PathAttributeMultiExitDisc:
			rest += fmt.Sprintf(" med %d", a.Value)
		case *bgp.PathAttributeLocalPref:
			rest += fmt.Sprintf(" pref %d", a.Value)
		case *bgp.PathAttributeCommunities:
			for _, c := range a.Value {
				rest += fmt.Sprintf(" %d:%d", c>>16, c&0xffff)
			}
		case *bgp.PathAttributeLargeCommunities:
			for _, c := range a.Values {
				rest += " " + c.String()
			}
		}
	}
	return "via " + hop + rest
}

// process is a speaker or a router in a namespace.
type process struct {
	t      *testing.T
	host   *netnstest.Host
	role   string
	folder string
	run    *exec.Cmd
	log    *logs
}

// logs keeps a process's output.
type logs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logs) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(text)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// nobody is the user of speakers, without any capability.
const nobody = 65532

func newProcess(t *testing.T, host *netnstest.Host, role string, configuration any) *process {
	t.Helper()
	folder, err := os.MkdirTemp("", "berth-"+role+"-") //nolint:usetesting // the user must reach it, and t.TempDir is root's alone
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	if err := os.Chown(folder, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, host: host, role: role, folder: folder, log: &logs{}}
	if err := os.MkdirAll(filepath.Join(folder, "passwords"), 0o755); err != nil {
		t.Fatal(err)
	}
	p.configure(configuration)
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%s:\n%s", role, p.log)
		}
	})
	p.start()
	return p
}

// configure writes the configuration, and has a process that runs read it.
func (p *process) configure(c any) {
	p.t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		p.t.Fatal(err)
	}
	p.write("configuration", string(text))
	if p.run != nil {
		p.signal(syscall.SIGHUP)
	}
}

func (p *process) write(name, text string) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(p.folder, name), []byte(text), 0o644); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.run.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// program is a copy of this one that every user may run.
var program = sync.OnceValues(func() (string, error) {
	folder, err := os.MkdirTemp("", "berth-speaker-test-")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(folder, 0o755); err != nil {
		return "", err
	}
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return "", err
	}
	defer self.Close()
	path := filepath.Join(folder, "program")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return "", err
	}
	if _, err := io.Copy(file, self); err != nil {
		return "", err
	}
	return path, file.Close()
})

func (p *process) start() {
	p.t.Helper()
	path, err := program()
	if err != nil {
		p.t.Fatal(err)
	}
	p.run = exec.Command(path)
	p.run.Env = append(os.Environ(), envRole+"="+p.role, envFolder+"="+p.folder)
	p.run.Stdout, p.run.Stderr = p.log, p.log
	p.run.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if p.role == "speaker" {
		p.run.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	p.host.Run(p.run.Start)
}

// kill ends the process as a crash does.
func (p *process) kill() {
	if p.run == nil {
		return
	}
	_ = p.run.Process.Kill()
	_ = p.run.Wait()
	p.run = nil
}

// end ends the process as the kubelet does.
func (p *process) end() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	_ = p.run.Wait()
	p.run = nil
}

func (p *process) get(path string) (string, error) {
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(p.folder, "socket"))
	}}}
	response, err := client.Get("http://process" + path)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return strings.TrimSpace(string(text)), err
}

func (p *process) status() (*status.Status, error) {
	text, err := p.get(status.Path)
	if err != nil {
		return nil, err
	}
	said := &status.Status{}
	return said, json.Unmarshal([]byte(text), said)
}

func (p *process) heard() (h heard, err error) {
	text, err := p.get("/")
	if err != nil {
		return h, err
	}
	return h, json.Unmarshal([]byte(text), &h)
}
