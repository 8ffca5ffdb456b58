// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	v1beta1 "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// kubelet does what the kubelet does: while a plugin registers it connects to it, and then it
// listens for as long as the connection lasts.
type kubelet struct {
	v1beta1.UnimplementedRegistrationServer
	folder string
	server *grpc.Server
	// refuses, if given, is the answer to a registration.
	refuses error

	requests chan *v1beta1.RegisterRequest
	lists    chan *v1beta1.ListAndWatchResponse
	// ended gets a value when a plugin is gone.
	ended chan error

	mu     sync.Mutex
	plugin *grpc.ClientConn
}

// startKubelet empties the folder and serves there, like a kubelet that starts.
func startKubelet(t *testing.T, folder string, refuses error) *kubelet {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.Remove(filepath.Join(folder, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	listener, err := net.Listen("unix", filepath.Join(folder, kubeletSocket))
	if err != nil {
		t.Fatal(err)
	}
	k := &kubelet{
		folder: folder, server: grpc.NewServer(), refuses: refuses,
		requests: make(chan *v1beta1.RegisterRequest, 100), lists: make(chan *v1beta1.ListAndWatchResponse, 100), ended: make(chan error, 100),
	}
	v1beta1.RegisterRegistrationServer(k.server, k)
	go func() { _ = k.server.Serve(listener) }()
	t.Cleanup(k.stop)
	return k
}

// stop ends the kubelet, which leaves no socket.
func (k *kubelet) stop() {
	k.server.Stop()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.plugin != nil {
		_ = k.plugin.Close()
	}
}

func (k *kubelet) Register(ctx context.Context, r *v1beta1.RegisterRequest) (*v1beta1.Empty, error) {
	k.requests <- r
	if k.refuses != nil {
		return nil, k.refuses
	}
	//nolint:staticcheck // as the kubelet does
	conn, err := grpc.DialContext(ctx, filepath.Join(k.folder, r.GetEndpoint()), grpc.WithAuthority("localhost"), grpc.WithBlock(),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(func(ctx context.Context, path string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}))
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	k.plugin = conn
	k.mu.Unlock()
	go func() {
		stream, err := v1beta1.NewDevicePluginClient(conn).ListAndWatch(context.Background(), &v1beta1.Empty{})
		for err == nil {
			var list *v1beta1.ListAndWatchResponse
			if list, err = stream.Recv(); err == nil {
				k.lists <- list
			}
		}
		k.ended <- err
		_ = conn.Close()
	}()
	return &v1beta1.Empty{}, nil
}

func (k *kubelet) client() v1beta1.DevicePluginClient {
	k.mu.Lock()
	defer k.mu.Unlock()
	return v1beta1.NewDevicePluginClient(k.plugin)
}

// wantRegistered waits for a registration and its first list.
func (k *kubelet) wantRegistered(t *testing.T, want ...*v1beta1.Device) {
	t.Helper()
	request := &v1beta1.RegisterRequest{Version: v1beta1.Version, Endpoint: ownSocket, ResourceName: v1alpha1.ResourceVF}
	if diff := cmp.Diff(request, <-k.requests, protocmp.Transform()); diff != "" {
		t.Errorf("the registration (-want +got):\n%s", diff)
	}
	k.wantList(t, want...)
}

func (k *kubelet) wantList(t *testing.T, want ...*v1beta1.Device) {
	t.Helper()
	if diff := cmp.Diff(&v1beta1.ListAndWatchResponse{Devices: want}, <-k.lists, protocmp.Transform()); diff != "" {
		t.Errorf("the devices (-want +got):\n%s", diff)
	}
}

// cards has the devices that a test's node has.
type cards struct {
	mu      sync.Mutex
	devices []Device
	err     error
}

func (c *cards) list() ([]Device, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.devices, c.err
}

func (c *cards) set(err error, devices ...Device) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.devices, c.err = devices, err
}

// start runs a plugin; stop ends it and waits for that.
func start(t *testing.T, folder string, every time.Duration, devices ...Device) (c *cards, stop func()) {
	t.Helper()
	c = &cards{devices: devices}
	p := New(folder, c.list)
	p.survey, p.retry = every, often
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	t.Cleanup(stop)
	return c, stop
}

func wantNoSocket(t *testing.T, folder string) {
	t.Helper()
	if _, err := os.Lstat(filepath.Join(folder, ownSocket)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket: %v", err)
	}
}

const (
	often = 10 * time.Millisecond
	never = time.Hour
)

var (
	deviceA  = Device{ID: "0000:01:10.0", Healthy: true, NUMANode: 1}
	deviceB  = Device{ID: "0000:01:10.1", NUMANode: -1}
	kubeletA = &v1beta1.Device{ID: "0000:01:10.0", Health: v1beta1.Healthy, Topology: &v1beta1.TopologyInfo{Nodes: []*v1beta1.NUMANode{{ID: 1}}}}
	kubeletB = &v1beta1.Device{ID: "0000:01:10.1", Health: v1beta1.Unhealthy}
)

// The kubelet hears of devices that come, go, and change their health; the socket is root's, and
// ends with the plugin.
func TestDevicesOfTheKubelet(t *testing.T) {
	folder := t.TempDir()
	k := startKubelet(t, folder, nil)
	// A killed agent left its socket.
	if err := os.WriteFile(filepath.Join(folder, ownSocket), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c, stop := start(t, folder, often, deviceA)
	k.wantRegistered(t, kubeletA)
	c.set(nil, deviceA, deviceB)
	k.wantList(t, kubeletA, kubeletB)
	healthy := deviceB
	healthy.Healthy, healthy.NUMANode = true, 0
	c.set(nil, deviceA, healthy)
	k.wantList(t, kubeletA, &v1beta1.Device{ID: "0000:01:10.1", Health: v1beta1.Healthy, Topology: &v1beta1.TopologyInfo{Nodes: []*v1beta1.NUMANode{{}}}})
	c.set(nil, healthy)
	k.wantList(t, &v1beta1.Device{ID: "0000:01:10.1", Health: v1beta1.Healthy, Topology: &v1beta1.TopologyInfo{Nodes: []*v1beta1.NUMANode{{}}}})
	// Where ADD could give none, there are none.
	c.set(errors.New("the card is down"), healthy)
	k.wantList(t)
	c.set(nil, deviceA)
	k.wantList(t, kubeletA)

	info, err := os.Stat(filepath.Join(folder, ownSocket))
	if err != nil || info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("the socket has mode %v: %v", info.Mode(), err)
	}
	stop()
	if err := <-k.ended; status.Code(err) != codes.Unavailable && status.Code(err) != codes.Canceled && status.Code(err) != codes.Internal {
		t.Errorf("the stream ended with %v", err)
	}
	wantNoSocket(t, folder)
}

// The kubelet allocates before it starts a container, and a plugin that answers nothing for one
// fails the pod.
func TestAllocate(t *testing.T) {
	folder := t.TempDir()
	k := startKubelet(t, folder, nil)
	start(t, folder, never, deviceA)
	k.wantRegistered(t, kubeletA)
	options, err := k.client().GetDevicePluginOptions(t.Context(), &v1beta1.Empty{})
	if err != nil || !proto.Equal(options, &v1beta1.DevicePluginOptions{}) {
		t.Errorf("GetDevicePluginOptions() = %v, %v", options, err)
	}
	for n := range 3 {
		request, want := &v1beta1.AllocateRequest{}, &v1beta1.AllocateResponse{}
		for range n {
			request.ContainerRequests = append(request.ContainerRequests, &v1beta1.ContainerAllocateRequest{DevicesIds: []string{deviceA.ID, deviceB.ID}})
			want.ContainerResponses = append(want.ContainerResponses, &v1beta1.ContainerAllocateResponse{})
		}
		response, err := k.client().Allocate(t.Context(), request)
		if diff := cmp.Diff(want, response, protocmp.Transform()); diff != "" || err != nil {
			t.Errorf("Allocate(%d) (-want +got): %v\n%s", n, err, diff)
		}
	}
	if _, err := k.client().PreStartContainer(t.Context(), &v1beta1.PreStartContainerRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("PreStartContainer() = %v", err)
	}
}

// A kubelet that starts again removes all sockets, and knows no plugin.
func TestKubeletRestarts(t *testing.T) {
	folder := t.TempDir()
	k := startKubelet(t, folder, nil)
	start(t, folder, never, deviceA)
	k.wantRegistered(t, kubeletA)
	for range 3 {
		k.stop()
		k = startKubelet(t, folder, nil)
		k.wantRegistered(t, kubeletA)
	}
	// Its socket is made anew while the old one still listens, as in a hand-over.
	next := startKubelet(t, folder, nil)
	next.wantRegistered(t, kubeletA)
	if err := <-k.ended; err == nil {
		t.Error("the plugin ended the list of the old kubelet as if it had no devices any more")
	}
}

// A kubelet that drops the plugin counts its devices again.
func TestDropped(t *testing.T) {
	folder := t.TempDir()
	k := startKubelet(t, folder, nil)
	start(t, folder, often, deviceA)
	k.wantRegistered(t, kubeletA)
	k.mu.Lock()
	err := k.plugin.Close()
	k.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	k.wantRegistered(t, kubeletA)
}

// A node without devices registers nothing, and with the first device it does; so where the kubelet
// comes later.
func TestLater(t *testing.T) {
	folder := t.TempDir()
	_, stop := start(t, folder, often)
	k := startKubelet(t, folder, nil)
	stop()
	if len(k.requests) > 0 {
		t.Error("registered without devices")
	}
	wantNoSocket(t, folder)
	c, _ := start(t, folder, often)
	c.set(nil, deviceA)
	k.wantRegistered(t, kubeletA)

	later := t.TempDir()
	start(t, later, never, deviceA)
	startKubelet(t, later, nil).wantRegistered(t, kubeletA)
}

// A kubelet that refuses is asked again, and why it refuses is told.
func TestRefused(t *testing.T) {
	folder := t.TempDir()
	k := startKubelet(t, folder, status.Error(codes.Unknown, "invalid resource: berth.dev/vf"))
	start(t, folder, never, deviceA)
	<-k.requests
	<-k.requests
	err := call(t.Context(), filepath.Join(folder, kubeletSocket), "/v1beta1.Registration/Register", encodeRegistration("x", "y"))
	if err == nil || !cmp.Equal(err.Error(), `refused with gRPC status "2" (HTTP 200): invalid resource: berth.dev/vf`) {
		t.Errorf("Register() = %v", err)
	}
	k.stop()
	k = startKubelet(t, folder, nil)
	k.wantRegistered(t, kubeletA)
}

// Without the kubelet's folder there is nothing to do.
func TestNoFolder(t *testing.T) {
	c := &cards{devices: []Device{deviceA}}
	if err := New(filepath.Join(t.TempDir(), "none"), c.list).Run(t.Context()); err != nil {
		t.Errorf("Run() = %v", err)
	}
}
