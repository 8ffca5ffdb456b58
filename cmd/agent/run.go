// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent"
	"github.com/berth-dev/berth/agent/assignment"
	"github.com/berth-dev/berth/agent/attachdef"
	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/confdir"
	"github.com/berth-dev/berth/agent/deadman"
	"github.com/berth-dev/berth/agent/deviceplugin"
	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/agent/linkwatch"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/plan"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/policy/iptables"
	"github.com/berth-dev/berth/agent/profile"
	"github.com/berth-dev/berth/agent/server"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cmd/internal/monitoring"
	"github.com/berth-dev/berth/cni/defaultroute"
	"github.com/berth-dev/berth/cni/hostport"
	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/nftables"
	"github.com/berth-dev/berth/cni/settings"
	"github.com/berth-dev/berth/cni/shaping"
	"github.com/berth-dev/berth/cni/sriov"
	"github.com/berth-dev/berth/cni/veth/wire"
	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/event"
	"github.com/berth-dev/berth/ipam/podrequest"
)

// grace limits how long calls under way may take when the agent ends; it is less than
// a pod's usual 30 s.
const grace = 25 * time.Second

// run builds the parts of the agent and serves until the context ends. Pods then keep
// their network.
func run(ctx context.Context, config *rest.Config, o *Options) error {
	exec, err := newExec(o)
	if err != nil {
		return err
	}
	exposeSettings(ctx, o)
	store, err := openState(ctx, o)
	if err != nil {
		return err
	}
	defer closeState(ctx, store)
	bootID, err := endBoot(ctx, store)
	if err != nil {
		return err
	}
	clients, err := newClients(config)
	if err != nil {
		return err
	}
	node := podinfo.New(o.NodeName, func(namespace string) podinfo.Pods { return clients.core.Pods(namespace) },
		clients.berth.FloatingIPs, podrequest.Reader{Galaxy: o.GalaxyAliases})
	recorder := newRecorder(ctx, clients.core.Events, o.NodeName)
	namespaces, journal := client.NewInformer(clients.core.Namespaces, &corev1.Namespace{}, 0, cache.Indexers{}), newJournal(o)
	profiles := newProfiles(clients, recorder, namespaces)
	networks, runOverlay, err := withOverlay(ctx, o, clients, newNetworks(o), journal)
	if err != nil {
		return err
	}
	keeper, err := newKeeper(o, exec, networks, tellNode(recorder, o.NodeName, confdir.EventNotCalled, "KeepConfiguration"))
	if err != nil {
		return err
	}
	ports, err := hostport.ParseRange(o.HostPortRange)
	if err != nil {
		return fmt.Errorf("--host-port-range: %w", err)
	}
	own := newOwnAddresses(o, clients, node, networks, recorder, namespaces, newWirer(o, journal))
	segments := newSegments(ctx, o, self(o, config), clients.core.CertificateSigningRequests)
	options := agent.Options{
		Socket: o.Socket, Pods: node, ConflictLog: node, Store: store,
		Plugins: newRunner(o, exec, bootID), Drivers: nettype.Drivers(nettype.Kernel{Wirer: own.wirer, StateFile: o.StateFile, Services: newServicePrefixes(o.ServicePrefixes, clients.core.ServiceCIDRs.List).prefixes}),
		Options:       newPlanOptions(o, clients, networks),
		DefaultRoutes: defaultroute.Kernel{}, Proxied: !o.DetectConflicts, Shaper: profiles,
		Metrics:           agent.NewMetrics(legacyregistry.MustRegister),
		Events:            recorder,
		Kernel:            detectNetfilter(ctx).Ready,
		RefusedNeighbours: netfilter.RefusedNeighbours,
		Configuration:     keeper,
		Egress:            own.egress, TellSoon: own.carrier.TellSoon,
		HostPorts: &hostport.Forwarder{}, HostPortRange: ports, NodeAddresses: assignment.Carried, Assigned: own.carrier, DeadMan: deadman.New(o.SilenceAfter), Segment: segments.open, Unicast: segments.hear, Node: segments.self, APIReachable: clients.reachable, AgentPort: o.Monitoring.SecurePort,
	}
	enforcer, err := withEnforcer(ctx, o, &options, clients, journal)
	if err != nil {
		return err
	}
	a := agent.New(options)
	legacyregistry.CustomMustRegister(a.Collector())
	return serve(ctx, o, a, own, tellRefusals(a.Ready, tellNode(recorder, o.NodeName, EventFirewall, "CheckReadiness")), node, config, keeper, runOverlay,
		segments.certificate.Run, func(ctx context.Context) error { return profiles.Run(ctx, a) },
		func(ctx context.Context) error { return countFunctions(ctx, o, networks, node, store) },
		func(ctx context.Context) error { return runPolicies(ctx, enforcer, a, store) })
}

func newPlanOptions(o *Options, clients *clients, networks *plan.Networks) plan.Options {
	return plan.Options{
		Networks:           networks,
		PodNetworks:        &attachdef.Reader{Get: clients.definition, Shared: o.NetworkNamespaces, Allowed: o.NetworkPlugins},
		HostPortsForbidden: clients.hostPortsForbidden,
	}
}

// newProfiles returns the controller that limits the bandwidth of pods. It runs the informer of
// namespaces.
func newProfiles(clients *clients, recorder event.Recorder, namespaces cache.SharedIndexInformer) *profile.Controller {
	return profile.New(profile.Options{
		Namespaces: namespaces,
		Profiles:   client.NewInformer[*v1alpha1.NetworkProfileList](clients.berth.NetworkProfiles, &v1alpha1.NetworkProfile{}, 0, cache.Indexers{}),
		Kernel:     &shaping.Shaper{}, Events: recorder, Metrics: profile.NewMetrics(legacyregistry.MustRegister),
	})
}

func closeState(ctx context.Context, store *state.Store) {
	if err := store.Close(); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot close the state file")
	}
}

func newExec(o *Options) (*chain.Exec, error) {
	exec := &chain.Exec{Root: o.HostRoot}
	if err := exec.CheckRoot(); err != nil {
		return nil, fmt.Errorf("--host-root: %w; the chart's agent.hostRoot=true and the kustomize component manifests/agent/host-root have all that the option needs", err)
	}
	return exec, nil
}

// endBoot ends the records of earlier starts of the node's kernel, and returns the ID of this one.
func endBoot(ctx context.Context, store *state.Store) (string, error) {
	bootID, err := settings.BootID()
	if err != nil {
		return "", err
	}
	ended, err := store.EndBoot(bootID)
	if ended > 0 {
		klog.FromContext(ctx).Info("The node was restarted: the networks of its containers are gone", "containers", ended)
	}
	return bootID, err
}

// exposeSettings lets plugins of other projects write the kernel settings of the network, which
// they do at /proc/sys: runtimes mount that read-only, and nothing over it. Where it cannot,
// plugins report the missing setting.
func exposeSettings(ctx context.Context, o *Options) {
	const settings = "/proc/sys/net"
	nodes := filepath.Join(o.SysctlRoot, "net")
	if o.HostRoot != "" || nodes == settings || unix.Access(settings, unix.W_OK) == nil {
		return
	}
	if err := unix.Mount(nodes, settings, "", unix.MS_BIND, ""); err != nil {
		klog.FromContext(ctx).Info("CNI plugins cannot change kernel settings here, as some do for host ports and IPv6; where AppArmor forbids the mount, set agent.hostRoot=true in the chart, or use the component manifests/agent/host-root", "mount", nodes, "at", settings, "err", err)
	}
}

// detectNetfilter logs the interface by which the agent speaks to the kernel's netfilter, and its
// features. Pods without a floating IP do not depend on it, so the agent starts anyway, and is not
// ready.
func detectNetfilter(ctx context.Context) *netfilter.Detector {
	logger := klog.FromContext(ctx)
	s, err := netfilter.Detect()
	if err == nil {
		logger.Info("Found the kernel's netfilter", "interface", netfilter.Interface, "kernel", s.Kernel, "has", s.Has, "lacks", s.Lacks)
		for _, without := range s.Without {
			logger.Info("This kernel cannot do everything; other pods have floating IPs all the same. See docs/reference/compatibility.md", "without", without)
		}
		err = s.Err()
	}
	if err != nil {
		logger.Error(err, "Pods cannot have floating IPs on this node", "interface", netfilter.Interface)
	}
	return &netfilter.Detector{Detect: netfilter.Detect}
}

// newJournal returns the journal of the kernel settings. An agent has one, which all writers of
// settings share: each of two would lose the other's entries.
func newJournal(o *Options) *settings.Journal {
	return settings.NewJournal(settings.FileBeside(o.StateFile), o.SysctlRoot)
}

func newWirer(o *Options, journal *settings.Journal) *wire.Wirer {
	w := wire.New(o.SysctlRoot)
	w.Settings = journal
	return w
}

// serve runs the agent and background until one of them fails or the context ends.
func serve(ctx context.Context, o *Options, a *agent.Agent, own *ownAddresses, ready func(context.Context) error, node *podinfo.Node, config *rest.Config, keeper *confdir.Keeper, background ...func(context.Context) error) error {
	s := &server.Server{Socket: o.Socket, Handler: a, Observe: a.Metrics.Call, ToError: agent.ToCNIError}
	listener, err := s.Listen(ctx)
	if err != nil {
		return err
	}
	health, err := monitoring.Listen(ctx, o.Monitoring, config, ready, nil, resources(o, a)...)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	own.carrier.Answerer = a.Answerer()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.Serve(ctx, listener, grace) })
	group.Go(func() error { return node.Run(ctx, a) })
	group.Go(func() error { a.Run(ctx); return nil })
	group.Go(func() error { return own.carrier.Run(ctx) })
	group.Go(func() error { return own.carrier.TellPods(ctx, a.Untold) })
	group.Go(func() error { return own.carrier.StandBy(ctx) })
	group.Go(func() error { return own.egress.Run(ctx, a) })
	announce := func(ctx context.Context) { a.AnnounceAll(ctx); own.carrier.Announce() }
	if o.AnnounceInterval > 0 {
		group.Go(func() error { wait.JitterUntilWithContext(ctx, announce, o.AnnounceInterval, 0.1, true); return nil })
	}
	group.Go(func() error {
		return linkwatch.Watch(ctx, a.Uplinks, linkwatch.Reactions{
			Changed: func(ctx context.Context) { a.Recheck(ctx); own.recheck() }, Back: node.VerifyAtOnce, Carrier: a.Carrier,
			Moved: announce, Unshaped: a.Shaper.Recheck,
		})
	})
	group.Go(func() error {
		// Without events the agent looks once a minute.
		if err := nftables.Watch(ctx, []string{netfilter.TablePrefix, iptables.TableName}, func() { a.Recheck(ctx); own.egress.Soon() }); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot see at once when another program deletes Berth's rules")
		}
		return nil
	})
	group.Go(func() error { return health.Serve(ctx) })
	for _, run := range background {
		group.Go(func() error { return run(ctx) })
	}
	klog.FromContext(ctx).Info("Serving CNI", "socket", o.Socket, "node", o.NodeName)
	// The runtime starts pods when it sees the file.
	group.Go(func() error { return keeper.Run(ctx) })
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// resources are for operators from afar. The same are on the agent's socket.
func resources(o *Options, a *agent.Agent) []monitoring.Resources {
	handler, audience := inquiry.Handler(a), agentpod.Audience(o.NodeName)
	return []monitoring.Resources{
		{Paths: inquiry.Paths, Header: agentpod.TokenHeader, Audience: audience, Role: agentpod.Diagnosis, Handler: handler},
		{Method: "POST", Paths: []string{inquiry.PathTakeOver}, Header: agentpod.TokenHeader, Audience: audience, Role: agentpod.Operator, Handler: handler},
	}
}

// openState opens the state file. It moves one aside that the operator wants to be rid of, or that
// nobody can read: without an agent the node withdraws nothing.
func openState(ctx context.Context, o *Options) (*state.Store, error) {
	if o.ResetState {
		aside, err := state.MoveAside(o.StateFile, time.Now())
		if err != nil {
			return nil, err
		}
		klog.FromContext(ctx).Info("Starting with an empty state file", "old", aside)
	}
	store, err := state.Open(o.StateFile)
	if errors.Is(err, state.ErrDamaged) {
		aside, moved := state.MoveAside(o.StateFile, time.Now())
		if moved != nil {
			return nil, errors.Join(err, moved)
		}
		klog.FromContext(ctx).Error(err, "The state file is damaged. Starting with an empty one: running pods keep their network and host ports, their addresses are withdrawn as before, and DEL and CNI GC clean up after deleted pods", "old", aside)
		store, err = state.Open(o.StateFile)
	}
	if errors.Is(err, state.ErrUnusable) {
		return nil, fmt.Errorf("%w; it was left as it is. Run the version of the agent that wrote it, or start once with --reset-state to rename it and begin anew: running pods keep their network, and DEL and CNI GC clean up after deleted pods", err)
	}
	return store, err
}

func newRunner(o *Options, exec *chain.Exec, bootID string) *chain.Runner {
	runner := chain.NewRunner(exec, []string{o.CNIBinDir})
	runner.Cache = chain.NewCache(o.CNICacheDir, bootID)
	return runner
}

func newNetworks(o *Options) *plan.Networks {
	return &plan.Networks{
		ConfDir: o.CNIConfDir, OwnFile: o.CNIConfName, DefaultFile: o.DefaultNetwork, FloatingFile: o.FloatingNetwork,
		Node: nettype.Node{Socket: o.Socket, Uplink: func() (string, error) {
			if o.Uplink != "" {
				return wire.UplinkOf(o.Uplink)
			}
			addr, err := netip.ParseAddr(o.NodeIP)
			if err != nil {
				return "", fmt.Errorf("parse the node's address: %w", err)
			}
			return wire.UplinkFor(addr)
		}},
	}
}

// countFunctions has the kubelet count the virtual functions of the floating network.
func countFunctions(ctx context.Context, o *Options, networks *plan.Networks, node *podinfo.Node, store *state.Store) error {
	// Before, no pod seems to request anything.
	if !node.WaitForSync(ctx) {
		return nil
	}
	functions := sriov.New(sriov.DirBeside(o.StateFile))
	return deviceplugin.New(deviceplugin.Folder, func() ([]deviceplugin.Device, error) {
		floating, err := networks.Floating()
		if err != nil || len(floating.Cards) == 0 {
			return nil, err
		}
		all, err := functions.List(floating.Cards)
		if err != nil {
			return nil, err
		}
		return deviceplugin.Devices(all, deviceplugin.Requested(store.List(), node.Functions)), nil
	}).Run(ctx)
}
