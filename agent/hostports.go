// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/hostport"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/galaxy"
	"github.com/berth-dev/berth/ipam/wakeup"
)

// forwarder makes the node forward ports to pods. Methods are safe in parallel and block for
// the kernel only.
type forwarder interface {
	// Apply makes the node forward the ports of mappings and no others, in one
	// transaction, and returns true where something else was there.
	Apply(mappings []hostport.Mapping) (changed bool, err error)
	// Check returns an error that names a mapping that the node does not forward.
	Check(mappings []hostport.Mapping) error
	// Forwarded lists the ports that the node forwards.
	Forwarded() ([]hostport.Mapping, error)
	// Unused returns true where no program of the node has the port or gets it unasked.
	Unused(protocol string, port uint16) (bool, error)
}

// ErrHostPortTaken is returned by Add where another pod of the node has a host port.
var ErrHostPortTaken = errors.New("host port is taken")

// capabilityPortMappings is the capability of CNI by which plugins get host ports.
const capabilityPortMappings = "portMappings"

// hostPorts has the forwards of the node that no record of a complete container has. A record has a
// port from the first write of ADD (claim); from then on other pods are refused. The port is open
// from openPorts on, as long as the phase is added. Older containers of the same pod lose it when
// the ADD is complete.
type hostPorts struct {
	mu sync.Mutex
	// adding has the mappings of ADDs that have opened their ports and are not complete.
	adding map[state.Key][]hostport.Mapping
	// wake has the kernel compared with the records.
	wake wakeup.Signal
	// unrecorded are the ports of pods whose records were lost. read and podsKnown say that the
	// kernel and the API were asked for them. These three change under the lock of the host ports;
	// mu is for readers of unrecorded without it.
	unrecorded      []unrecorded
	read, podsKnown bool
}

func newHostPorts() hostPorts {
	return hostPorts{adding: map[state.Key][]hostport.Mapping{}, wake: wakeup.New()}
}

func (h *hostPorts) begin(key state.Key, mappings []hostport.Mapping) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.adding[key] = mappings
}

func (h *hostPorts) end(key state.Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.adding, key)
}

func (h *hostPorts) checkSoon() {
	h.wake.Send()
}

// lockHostPorts locks the host ports of all records. Its caller may write records and change the
// kernel, and runs no plugin and asks no API meanwhile. Callers that need locks of addresses, too,
// take the address locks first.
func (a *Agent) lockHostPorts(ctx context.Context) (func(), error) {
	ctx, cancel := context.WithTimeout(ctx, kernelPatience)
	defer cancel()
	unlock, err := a.locks.Lock(ctx, "host ports")
	if err != nil {
		return nil, fmt.Errorf("wait for another call for host ports: %w", err)
	}
	return unlock, nil
}

// requestedPorts returns the host ports that a pod asks for: the ports of the runtime's
// portMappings, and, with the annotation, one of the node's choice for every other port of its
// containers, which has the number 0.
func requestedPorts(pod podinfo.Pod, capabilities map[string]json.RawMessage) ([]state.HostPort, error) {
	var all []state.HostPort
	var given []struct {
		HostPort      int        `json:"hostPort"`
		ContainerPort int        `json:"containerPort"`
		Protocol      string     `json:"protocol"`
		HostIP        netip.Addr `json:"hostIP"`
	}
	if raw := capabilities[capabilityPortMappings]; raw != nil {
		if err := json.Unmarshal(raw, &given); err != nil {
			return nil, fmt.Errorf("%w: decode portMappings: %w", ErrDecode, err)
		}
	}
	for _, g := range given {
		if g.HostPort == 0 {
			continue
		}
		protocol := strings.ToUpper(g.Protocol)
		if protocol == "" {
			protocol = "TCP"
		}
		if !slices.Contains([]string{"TCP", "UDP", "SCTP"}, protocol) || g.HostPort < 0 || g.HostPort > 65535 || g.ContainerPort <= 0 || g.ContainerPort > 65535 {
			return nil, fmt.Errorf("%w: portMappings has no such host port: %+v", ErrConfig, g)
		}
		all = append(all, state.HostPort{HostPort: api.HostPort{
			HostPort: uint16(g.HostPort), ContainerPort: uint16(g.ContainerPort), Protocol: protocol, HostIP: g.HostIP.Unmap(),
		}})
	}
	if pod.HostPorts.Err != nil {
		return nil, pod.HostPorts.Err
	}
	for _, port := range pod.HostPorts.Random {
		all = append(all, state.HostPort{HostPort: port, Random: true})
	}
	return all, nil
}

// claim writes the first record of an ADD, and with it takes the pod's host ports from pods
// that have ended. Ports that older containers of the same pod have stay theirs, too, until
// the ADD is complete: one that fails has taken nothing. claim returns ErrHostPortTaken, with the
// holder's name, for a port of another pod.
func (a *Agent) claim(ctx context.Context, record *state.Container) error {
	asked := map[api.Pod]bool{}
	for {
		holder, port, err := a.tryClaim(ctx, record)
		if err != nil || holder == nil {
			return err
		}
		if holder.pod == (api.Pod{}) {
			if !a.Pods.WaitForSync(ctx) {
				return fmt.Errorf("%w: host port %s may be one of a pod that is not known yet: the API server has not answered", ErrNotReady, port)
			}
			if err := a.findPods(ctx); err != nil {
				return err
			}
			continue
		}
		alive := asked[holder.pod]
		if !alive {
			// The scheduler gives a port again when a pod has finished, which this node may
			// hear later.
			if alive, err = a.Pods.Alive(ctx, holder.pod); err != nil {
				return err
			}
		}
		if alive {
			return fmt.Errorf("%w: %s is a host port of pod %s on this node; choose another hostPort, or end that pod", ErrHostPortTaken, port, holder.pod)
		}
		asked[holder.pod] = true
		if holder.record != nil {
			err = a.withdraw(ctx, holder.record, podGone)
		} else {
			err = a.forgetPorts(ctx, func(p unrecorded) bool { return p.pod == holder.pod })
		}
		if err != nil {
			return err
		}
	}
}

// portHolder is another pod that has a host port.
type portHolder struct {
	// pod is empty where the pods of the node are not known yet.
	pod api.Pod
	// record is nil where it was lost.
	record *state.Container
}

// tryClaim writes the record, or returns another pod that has one of its ports. It
// changes no other record.
func (a *Agent) tryClaim(ctx context.Context, record *state.Container) (holder *portHolder, port state.HostPort, err error) {
	if len(record.HostPorts) == 0 {
		return nil, port, a.Store.Put(record)
	}
	unlock, err := a.lockHostPorts(ctx)
	if err != nil {
		return nil, port, err
	}
	defer unlock()
	others := slices.DeleteFunc(a.Store.List(), func(r *state.Container) bool { return r.Key() == record.Key() || len(r.HostPorts) == 0 })
	lost, err := a.unrecordedPorts()
	if err != nil {
		return nil, port, err
	}
	for _, p := range lost {
		// Like an older container of the pod.
		others = append(others, &state.Container{Pod: p.pod, Phase: state.Added, HostPorts: []state.HostPort{{HostPort: p.HostPort, Random: true}}})
	}
	if err := a.choosePorts(record, others); err != nil {
		return nil, port, err
	}
	var older []*state.Container
	for _, other := range others {
		if !opensPorts(other) {
			continue
		}
		taken := conflicts(record.HostPorts, other.HostPorts)
		switch {
		case len(taken) == 0:
		case !other.Pod.Is(record.Pod):
			holder := &portHolder{pod: other.Pod}
			if other.ContainerID != "" {
				holder.record = other
			}
			return holder, taken[0], nil
		case other.Phase == state.Adding:
			older = append(older, other)
		}
	}
	if err := tellPlugins(record); err != nil {
		return nil, port, err
	}
	if err := a.Store.Put(record); err != nil {
		return nil, port, err
	}
	for _, other := range older {
		a.adds.end(other.Key(), fmt.Errorf("%w: another container of the pod gets its host ports", podinfo.ErrPodReplaced))
	}
	return nil, port, nil
}

// opensPorts returns true for a record whose host ports no other pod can have.
func opensPorts(record *state.Container) bool {
	return record.Phase == state.Added || record.Phase == state.Adding
}

// conflicts lists the ports of ours that the node cannot have beside theirs.
func conflicts(ours, theirs []state.HostPort) []state.HostPort {
	return slices.DeleteFunc(slices.Clone(ours), func(our state.HostPort) bool {
		return !slices.ContainsFunc(theirs, func(their state.HostPort) bool { return hostport.Conflict(our.HostPort, their.HostPort) })
	})
}

// putComplete writes a record that is complete and, with it, takes its host ports from the
// older containers of the pod: their DEL, which may come later, finds nothing to close.
func (a *Agent) putComplete(record *state.Container) error {
	if len(record.HostPorts) == 0 {
		return a.Store.Put(record)
	}
	return a.Store.Change(func(records map[state.Key]*state.Container) ([]*state.Container, error) {
		changed := []*state.Container{record}
		for key, other := range records {
			taken := conflicts(other.HostPorts, record.HostPorts)
			if key == record.Key() || !other.Pod.Is(record.Pod) || other.Phase != state.Added || len(taken) == 0 {
				continue
			}
			other.HostPorts = slices.DeleteFunc(other.HostPorts, func(p state.HostPort) bool { return slices.Contains(taken, p) })
			changed = append(changed, other)
		}
		return changed, nil
	})
}

// choosePorts gives the record's ports without a number one: that which an older container
// of the pod has, or a free one.
func (a *Agent) choosePorts(record *state.Container, others []*state.Container) error {
	for i, port := range record.HostPorts {
		if port.HostPort.HostPort != 0 {
			continue
		}
		taken := func(number uint16) bool {
			candidate := port.HostPort
			candidate.HostPort = number
			conflict := func(p state.HostPort) bool {
				return p.HostPort.HostPort != 0 && hostport.Conflict(p.HostPort, candidate)
			}
			return slices.ContainsFunc(record.HostPorts, conflict) || slices.ContainsFunc(others, func(r *state.Container) bool {
				return !r.Pod.Is(record.Pod) && slices.ContainsFunc(r.HostPorts, conflict)
			})
		}
		for _, other := range others {
			for _, had := range other.HostPorts {
				if other.Pod.Is(record.Pod) && had.Random && had.Protocol == port.Protocol && had.ContainerPort == port.ContainerPort && !taken(had.HostPort.HostPort) {
					record.HostPorts[i].HostPort.HostPort = had.HostPort.HostPort
				}
			}
		}
		if record.HostPorts[i].HostPort.HostPort != 0 {
			continue
		}
		seed := fnv.New64a()
		fmt.Fprint(seed, record.Pod.Identity(), port.Protocol, port.ContainerPort)
		number, err := a.HostPortRange.Choose(seed.Sum64(), func(number uint16) (bool, error) {
			if taken(number) {
				return false, nil
			}
			return a.HostPorts.Unused(port.Protocol, number)
		})
		if err != nil {
			return fmt.Errorf("choose a host port for %s port %d of pod %s: %w", port.Protocol, port.ContainerPort, record.Pod, err)
		}
		record.HostPorts[i].HostPort.HostPort = number
	}
	return nil
}

// pluginOpensPorts returns true where a plugin of the container's first network opens host
// ports itself.
func pluginOpensPorts(record *state.Container) (bool, error) {
	network, err := networkOf(record, 0)
	if err != nil {
		return false, err
	}
	return network.Declares(capabilityPortMappings), nil
}

// tellPlugins puts the ports that the node chose into the capabilities of a network whose
// plugin opens host ports itself.
func tellPlugins(record *state.Container) error {
	opens, err := pluginOpensPorts(record)
	if err != nil || !opens || !hasRandomPorts(record) {
		return err
	}
	all := slices.Clone(record.HostPorts)
	for i := range all {
		all[i].Protocol = strings.ToLower(all[i].Protocol)
	}
	raw, err := json.Marshal(portsOf(all))
	if err != nil {
		return fmt.Errorf("encode host ports: %w", err)
	}
	if record.Capabilities == nil {
		record.Capabilities = map[string]json.RawMessage{}
	}
	record.Capabilities[capabilityPortMappings] = raw
	return nil
}

func hasRandomPorts(record *state.Container) bool {
	return slices.ContainsFunc(record.HostPorts, func(p state.HostPort) bool { return p.Random })
}

func portsOf(ports []state.HostPort) []api.HostPort {
	all := make([]api.HostPort, 0, len(ports))
	for _, p := range ports {
		all = append(all, p.HostPort)
	}
	return all
}

// mappingsOf returns the mappings that the node must forward for a record with the results of its
// plugins: none where a plugin forwards.
func mappingsOf(record *state.Container) ([]hostport.Mapping, error) {
	if len(record.HostPorts) == 0 {
		return nil, nil
	}
	if opens, err := pluginOpensPorts(record); err != nil || opens {
		return nil, err
	}
	first := record.Attachments[0]
	network, err := chain.Parse(first.Network)
	if err != nil {
		return nil, fmt.Errorf("the record of container %s: %w", record.ContainerID, err)
	}
	detached, err := nettype.Of(first.Driver).Detached(network)
	if err != nil {
		return nil, fmt.Errorf("the record of container %s: %w", record.ContainerID, err)
	}
	return hostport.Mappings(portsOf(record.HostPorts), addressesOf(first.Result), detached)
}

// openPorts opens the host ports of an ADD whose plugins have ended.
func (a *Agent) openPorts(ctx context.Context, record *state.Container) error {
	mappings, err := mappingsOf(record)
	if err != nil || len(mappings) == 0 {
		return err
	}
	unlock, err := a.lockHostPorts(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	// A withdrawal of a port or of the pod ended the context before it got the lock.
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	a.hostPorts.begin(record.Key(), mappings)
	if _, err := a.apply(ctx); err != nil {
		return fmt.Errorf("open the host ports of pod %s: %w", record.Pod, err)
	}
	return nil
}

// closePorts closes the host ports of a record that is no longer added, if it has any.
func (a *Agent) closePorts(ctx context.Context, record *state.Container) error {
	if len(record.HostPorts) == 0 {
		return nil
	}
	a.hostPorts.end(record.Key())
	if _, err := a.applyPorts(ctx); err != nil {
		return fmt.Errorf("close the host ports of pod %s: %w", record.Pod, err)
	}
	return nil
}

// reopenPorts writes a record that is added again, with the host ports that no other pod has
// meanwhile, and opens them.
func (a *Agent) reopenPorts(ctx context.Context, record *state.Container) error {
	if len(record.HostPorts) == 0 {
		return a.Store.Put(record)
	}
	unlock, err := a.lockHostPorts(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	for _, other := range a.Store.List() {
		if other.Key() == record.Key() || !opensPorts(other) {
			continue
		}
		taken := conflicts(record.HostPorts, other.HostPorts)
		record.HostPorts = slices.DeleteFunc(record.HostPorts, func(p state.HostPort) bool { return slices.Contains(taken, p) })
	}
	if err := a.Store.Put(record); err != nil {
		return err
	}
	if _, err := a.apply(ctx); err != nil {
		// The record lists the open ports, and the reconciler opens them.
		a.hostPorts.checkSoon()
		return fmt.Errorf("open the host ports of pod %s: %w", record.Pod, err)
	}
	return nil
}

// applyPorts makes the kernel forward the ports of the records.
func (a *Agent) applyPorts(ctx context.Context) (changed bool, err error) {
	unlock, err := a.lockHostPorts(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	return a.apply(ctx)
}

// apply is applyPorts for callers that hold the lock of the host ports.
func (a *Agent) apply(ctx context.Context) (changed bool, err error) {
	lost, err := a.unrecordedPorts()
	if err != nil {
		return false, err
	}
	mappings := a.allMappings(ctx)
	var more []hostport.Mapping
	for _, p := range lost {
		more = append(more, p.Mapping)
	}
	return a.HostPorts.Apply(append(mappings, without(more, mappings)...))
}

// allMappings lists the ports that the node must forward for the records. A record that cannot be
// read must not close the ports of others. The caller holds the lock of the host ports.
func (a *Agent) allMappings(ctx context.Context) []hostport.Mapping {
	records := a.Store.List()
	var opening []hostport.Mapping
	a.hostPorts.mu.Lock()
	for _, record := range records {
		if record.Phase == state.Adding {
			opening = append(opening, a.hostPorts.adding[record.Key()]...)
		}
	}
	a.hostPorts.mu.Unlock()
	all := slices.Clone(opening)
	for _, record := range records {
		if record.Phase != state.Added {
			continue
		}
		mappings, err := mappingsOf(record)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Cannot forward the host ports of a pod", "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name))
			continue
		}
		// A new container of the pod that is about to be complete has the port already.
		all = append(all, without(mappings, opening)...)
	}
	return all
}

// without lists the mappings whose ports the node can have beside the ports of others.
func without(mappings, others []hostport.Mapping) []hostport.Mapping {
	return slices.DeleteFunc(mappings, func(m hostport.Mapping) bool {
		return slices.ContainsFunc(others, func(o hostport.Mapping) bool { return hostport.Conflict(m.HostPort, o.HostPort) })
	})
}

// checkPorts returns an error where the node does not forward the record's ports.
func (a *Agent) checkPorts(record *state.Container) error {
	mappings, err := mappingsOf(record)
	if err != nil || len(mappings) == 0 {
		return err
	}
	return a.HostPorts.Check(mappings)
}

// reconcilePorts compares kernel and records whenever it is told to, until the context ends.
func (a *Agent) reconcilePorts(ctx context.Context) {
	logger := klog.FromContext(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.hostPorts.wake:
		}
		changed, err := a.applyPorts(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			logger.Error(err, "Cannot make the node forward its host ports, will try again")
			time.AfterFunc(portRetry, a.hostPorts.checkSoon)
		case changed:
			logger.Info("Made the node forward the host ports that the records have")
		}
	}
}

// portRetry is the wait after a failure.
const portRetry = 5 * time.Second

// hostPortStatus returns the annotations that tell the host ports of a pod that left the
// choice to the node, in Galaxy's way, too, if the pod asked so.
func hostPortStatus(record *state.Container) (map[string]string, error) {
	annotations := map[string]string{}
	if !hasRandomPorts(record) {
		return annotations, nil
	}
	ports, err := json.Marshal(portsOf(record.HostPorts))
	if err != nil {
		return nil, fmt.Errorf("encode host ports: %w", err)
	}
	annotations[v1alpha1.AnnotationHostPortsStatus] = string(ports)
	if !record.GalaxyPorts {
		return annotations, nil
	}
	addrs := addressesOf(record.Attachments[0].Result)
	var all []galaxy.PortMapping
	for _, p := range record.HostPorts {
		mapping := galaxy.PortMapping{
			HostPort: int32(p.HostPort.HostPort), ContainerPort: int32(p.ContainerPort), Protocol: p.Protocol, PodName: record.Pod.Name,
		}
		if p.HostIP.IsValid() {
			mapping.HostIP = p.HostIP.String()
		}
		if len(addrs) > 0 {
			mapping.PodIP = addrs[0].String()
		}
		all = append(all, mapping)
	}
	if ports, err = json.Marshal(all); err != nil {
		return nil, fmt.Errorf("encode host ports: %w", err)
	}
	annotations[galaxy.AnnotationPortMapping] = string(ports)
	return annotations, nil
}
