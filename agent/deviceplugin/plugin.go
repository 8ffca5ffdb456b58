// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Folder is where every kubelet has its socket for device plugins, and looks for sockets of
// plugins.
const Folder = "/var/lib/kubelet/device-plugins"

// Socket is the plugin's socket there, which a killed agent may leave.
const Socket = Folder + "/" + ownSocket

const (
	version       = "v1beta1"
	kubeletSocket = "kubelet.sock"
	// ownSocket must not change: an earlier agent may have left it.
	ownSocket = "berth-vf.sock"
	// survey is how often the devices are listed, and a kubelet is looked for without a notice of its
	// socket.
	survey = 10 * time.Second
	// retry is the wait after a failed registration: the socket of a starting kubelet exists before it
	// responds.
	retry = time.Second
	// patience limits a registration, in which the kubelet tries for ten seconds to reach the plugin.
	patience = 15 * time.Second
)

// Plugin tells the kubelet which devices the node has.
type Plugin struct {
	folder        string
	list          func() ([]Device, error)
	survey, retry time.Duration

	// mu guards said, the last problem that was logged.
	mu   sync.Mutex
	said string
}

// New returns a plugin with its socket in folder. list returns the devices, or an error if no
// container could have one: then the kubelet counts none. It may be called in parallel.
func New(folder string, list func() ([]Device, error)) *Plugin {
	return &Plugin{folder: folder, list: list, survey: survey, retry: retry}
}

// Run registers with the kubelet while there are devices, and with each new one, until ctx ends. It
// returns at once where there is no folder.
func (p *Plugin) Run(ctx context.Context) error {
	if _, err := os.Stat(p.folder); errors.Is(err, fs.ErrNotExist) {
		if devices, err := p.list(); err == nil && len(devices) > 0 {
			klog.FromContext(ctx).Info("The scheduler does not count virtual functions: set agent.countFunctions=true in the chart; see docs/explanation/sriov.md", "functions", len(devices), "missing", p.folder)
		}
		return nil
	}
	kubelets, stop := p.watch(ctx)
	defer stop()
	for ctx.Err() == nil {
		wait := p.survey
		n, err := p.count()
		if n > 0 {
			wait, err = p.serve(ctx, kubelets, n)
		}
		if ctx.Err() == nil {
			p.tell(ctx, err)
		}
		select {
		case <-ctx.Done():
		case <-kubelets:
		case <-time.After(wait):
		}
	}
	return nil
}

// watch returns a channel for notices of new sockets of the kubelet. Without a channel Run looks
// from time to time.
func (p *Plugin) watch(ctx context.Context) (kubelets <-chan struct{}, stop func()) {
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		if err = watcher.Add(p.folder); err != nil {
			_ = watcher.Close()
		}
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot watch the kubelet's folder, looking from time to time; if files are too many, raise the sysctl fs.inotify.max_user_instances", "folder", p.folder, "every", p.survey)
		return nil, func() {}
	}
	made := make(chan struct{}, 1)
	go func() {
		for event := range watcher.Events {
			if event.Has(fsnotify.Create) && filepath.Base(event.Name) == kubeletSocket {
				select {
				case made <- struct{}{}:
				default:
				}
			}
		}
	}()
	go func() {
		for range watcher.Errors { // what was missed is looked for from time to time
		}
	}()
	return made, func() { _ = watcher.Close() }
}

// count returns the number of devices, 0 without a kubelet.
func (p *Plugin) count() (int, error) {
	if _, err := os.Stat(filepath.Join(p.folder, kubeletSocket)); errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	devices, err := p.list()
	if err != nil {
		return 0, err
	}
	return len(devices), nil
}

// serve registers n devices, and serves until the kubelet is gone or replaced, or ctx ends. It
// returns how long to wait for another kubelet.
func (p *Plugin) serve(ctx context.Context, kubelets <-chan struct{}, n int) (wait time.Duration, err error) {
	listener, err := listen(ctx, filepath.Join(p.folder, ownSocket))
	if err != nil {
		return p.retry, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	gone := make(chan struct{})
	var once sync.Once
	server := &http.Server{
		Handler: p.handler(), Protocols: overHTTP2(), ReadHeaderTimeout: patience,
		BaseContext: func(net.Listener) context.Context { return ctx },
		// The kubelet has one connection, for as long as it counts the devices.
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateClosed {
				once.Do(func() { close(gone) })
			}
		},
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	// Close removes the socket, too.
	defer func() {
		_ = server.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			klog.FromContext(ctx).V(2).Info("The server for the kubelet ended", "err", err)
		}
	}()
	kubelet := filepath.Join(p.folder, kubeletSocket)
	registering, done := context.WithTimeout(ctx, patience)
	defer done()
	if err := call(registering, kubelet, "/"+version+".Registration/Register", encodeRegistration(ownSocket, v1alpha1.ResourceVF)); err != nil {
		return p.retry, fmt.Errorf("register the virtual functions with the kubelet at %s: %w", kubelet, err)
	}
	p.tell(ctx, nil)
	klog.FromContext(ctx).Info("The kubelet counts the virtual functions", "resource", v1alpha1.ResourceVF, "functions", n)
	select {
	case <-kubelets:
		return 0, nil
	case <-ctx.Done():
	case <-gone:
	}
	return p.survey, nil
}

// listen makes a socket for root, in place of the socket of a killed agent.
func listen(ctx context.Context, path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of an earlier agent: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen for the kubelet: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("restrict access to the socket for the kubelet: %w", err), listener.Close())
	}
	return listener, nil
}

func (p *Plugin) handler() http.Handler {
	const service = "POST /" + version + ".DevicePlugin/"
	mux := http.NewServeMux()
	// No options: the kubelet makes no other calls.
	mux.Handle(service+"GetDevicePluginOptions", unary(func([]byte) ([]byte, error) { return nil, nil }))
	mux.Handle(service+"Allocate", unary(encodeAllocation))
	mux.HandleFunc(service+"ListAndWatch", p.listAndWatch)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { refuse(w, statusUnimplemented, "no method "+r.URL.Path) })
	return mux
}

// listAndWatch sends the devices, and again when they have changed, until the kubelet is gone.
func (p *Plugin) listAndWatch(w http.ResponseWriter, r *http.Request) {
	ctx := r.Context()
	again := time.NewTicker(p.survey)
	defer again.Stop()
	for first, sent := true, []byte(nil); ; first = false {
		devices, err := p.list()
		if err != nil {
			devices = nil
		}
		p.tell(ctx, err)
		if message := encodeDevices(devices); first || !bytes.Equal(message, sent) {
			if err := writeMessage(w, message); err != nil {
				return
			}
			sent = message
		}
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
	}
}

// tell logs a problem when it begins or changes.
func (p *Plugin) tell(ctx context.Context, problem error) {
	said := ""
	if problem != nil {
		said = problem.Error()
	}
	p.mu.Lock()
	changed := said != p.said
	p.said = said
	p.mu.Unlock()
	switch {
	case !changed:
	case problem != nil:
		klog.FromContext(ctx).Error(problem, "The scheduler counts no virtual functions of this node")
	default:
		klog.FromContext(ctx).Info("The problem with counting virtual functions is over")
	}
}
