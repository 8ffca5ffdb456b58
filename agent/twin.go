// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/veth/wire"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/wakeup"
)

// twins are the pods of this node to which virtual machines migrate, with their addresses. The node
// takes the addresses over with the first frame of the guest, which QEMU sends once the source's
// processors stand, or when KubeVirt says that the machine runs here.
type twins struct {
	*holdings

	soon wakeup.Signal
}

// standby is a driver whose Setup heeds Interface.Standby.
type standby interface{ StandsBy() }

// errCannotStandBy is returned for a network whose addresses cannot migrate.
var errCannotStandBy = errors.New("addresses of this network cannot migrate with a virtual machine: annotate it with spare-addresses: \"1\"")

// mayStand returns an error where the record's addresses cannot be taken over.
func (t *twins) mayStand(record *state.Container) error {
	var targets int
	err := t.eachInterface(record, func(d nettype.Driver, i *nettype.Interface) error {
		s, on := d.(onSegment)
		if _, can := d.(standby); !can || !on {
			return errCannotStandBy
		}
		found, release, err := s.Targets(i)
		if release != nil {
			release()
		}
		targets += len(found)
		return err
	})
	if err == nil && targets < len(record.Addresses()) {
		err = errCannotStandBy
	}
	if err != nil {
		return fmt.Errorf("pod %s: %w", record.Pod, err)
	}
	return nil
}

// run watches for the guests of all twins until ctx ends.
func (t *twins) run(ctx context.Context) {
	var group sync.WaitGroup
	defer group.Wait()
	watched := map[state.Key]context.CancelFunc{}
	for {
		waiting := map[state.Key]bool{}
		for _, record := range t.Store.List() {
			if !record.Standby || record.Phase != state.Added {
				continue
			}
			if seen, _ := t.Pods.Annotations(record.Pod); seen[v1alpha1.AnnotationMigrated] != "" {
				t.cut(ctx, record, "KubeVirt says that the virtual machine runs here")
				continue
			}
			waiting[record.Key()] = true
			if watched[record.Key()] == nil {
				watching, cancel := context.WithCancel(ctx)
				watched[record.Key()] = cancel
				group.Go(func() { t.watch(watching, record) })
			}
		}
		for key, cancel := range watched {
			if !waiting[key] {
				cancel()
				delete(watched, key)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-t.soon:
		}
	}
}

// watch takes the addresses of a twin over when its guest sends a frame.
func (t *twins) watch(ctx context.Context, record *state.Container) {
	err := awaitGuest(ctx, record)
	if err == nil {
		t.cut(ctx, record, "its guest has sent a frame")
	} else if ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Cannot see when a virtual machine comes; its node waits for KubeVirt to say so", "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name))
	}
}

// cut takes the addresses of a twin over.
func (t *twins) cut(ctx context.Context, record *state.Container, why string) {
	err := t.withAddresses(ctx, record, state.Added, func(now *state.Container) error {
		if !now.Standby {
			return nil
		}
		// The record comes first: after a start the machine is here.
		if _, err := t.Store.Update(now.Key(), func(c *state.Container) bool { c.Standby = false; return true }); err != nil {
			return err
		}
		for _, addr := range addressesOf(now) {
			t.answerer.Cut(addr)
		}
		klog.FromContext(ctx).Info("A virtual machine has come; the node takes its addresses over", "pod", klog.KRef(now.Pod.Namespace, now.Pod.Name), "ips", addressesOf(now), "reason", why)
		return nil
	})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot take the addresses of a virtual machine over", "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name))
	}
	t.TellSoon()
}

// tookOver returns the version of a twin's record that says that it took its addresses over, empty
// where it did not.
func tookOver(record *state.Container) string {
	newest := uint64(0)
	for _, held := range record.Held {
		if held.Twin {
			newest = max(newest, held.Version)
		}
	}
	if record.Standby || newest == 0 {
		return ""
	}
	return strconv.FormatUint(newest, 10)
}

// awaitGuest returns nil when a frame comes into a bridge of the pod from any port but the record's
// interface. It sees frames before packet filters do, and whatever becomes of them.
func awaitGuest(ctx context.Context, record *state.Container) error {
	host, err := rtnl.LinkOrNil(wire.HostLink(record.ContainerID, nettype.FloatingOf(record.Attachments).IfName))
	if err != nil {
		return err
	}
	if host == nil {
		return fmt.Errorf("%w: the pod's link is missing", podinfo.ErrPodReplaced)
	}
	netns, err := rtnl.GetNS(record.NetNS)
	if err != nil {
		return err
	}
	defer netns.Close()
	var socket *os.File
	var links *netlink.Handle
	err = netns.Do(func(ns.NetNS) error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(allProtocols))
		if err != nil {
			return fmt.Errorf("open a packet socket in %s: %w", record.NetNS, err)
		}
		socket = os.NewFile(uintptr(fd), "frames of a guest")
		links, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if links != nil {
		defer links.Close()
	}
	if socket == nil || err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = socket.Close() })()
	defer socket.Close()
	conn, err := socket.SyscallConn()
	if err != nil {
		return err
	}
	for {
		var from unix.Sockaddr
		var received error
		var start [14]byte
		err := conn.Read(func(fd uintptr) bool {
			_, from, received = unix.Recvfrom(int(fd), start[:], 0)
			return !errors.Is(received, unix.EAGAIN)
		})
		if err := errors.Join(err, received); err != nil {
			if errors.Is(err, unix.ENETDOWN) {
				continue
			}
			return fmt.Errorf("wait for a frame of the guest: %w", err)
		}
		link, ok := from.(*unix.SockaddrLinklayer)
		if !ok || link.Pkttype == unix.PACKET_OUTGOING || link.Ifindex == host.Attrs().ParentIndex {
			continue
		}
		if port, err := links.LinkByIndex(link.Ifindex); err == nil && port.Attrs().MasterIndex != 0 {
			return nil
		}
	}
}

// allProtocols is ETH_P_ALL in network byte order.
const allProtocols = (unix.ETH_P_ALL&0xff)<<8 | unix.ETH_P_ALL>>8
