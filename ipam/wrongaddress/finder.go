// SPDX-License-Identifier: Apache-2.0

package wrongaddress

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/event"
	"github.com/berth-dev/berth/ipam/iprange"
)

// Reasons of events. docs/reference/events.md is made of the comments.
const (
	// EventWrongAddress (Warning on Pod): the pod runs with an address of another CNI plugin, and no
	// node answers for its own address. Do: see
	// docs/how-to/troubleshooting.md#berthpodshavewrongaddresses.
	EventWrongAddress = "WrongAddress"
)

const (
	// interval is how often all pods are compared.
	interval = 20 * time.Second
	// mostEvictions is how many pods one round evicts at most, so that a mistake or a large fault does
	// not end a whole application at once.
	mostEvictions = 5
	// rest is how long after an eviction the next pod with the same address is not evicted: if it has
	// a wrong address again, another eviction would not help soon.
	rest = 10 * time.Minute
)

// Config has the dependencies of a Finder.
type Config struct {
	// Pods may be transformed by reclaim.Slim.
	Pods corelisters.PodLister
	// Recorded returns the FloatingIPs that record the pod of a UID.
	Recorded func(uid types.UID) []*v1alpha1.FloatingIP
	Events   event.Recorder
	// Evict evicts a pod unless a PodDisruptionBudget forbids it; nil: no pod is evicted.
	Evict func(ctx context.Context, eviction *policyv1.Eviction) error
	Count *metrics.Gauge
}

// NewCount creates the metric of a Finder.
func NewCount() *metrics.Gauge {
	return metrics.NewGauge(&metrics.GaugeOpts{
		Name: "berth_wrong_address_pods", Help: "Running pods that have none of the addresses that are recorded for them: another CNI plugin made their network.", StabilityLevel: metrics.ALPHA,
	})
}

// Finder finds pods with wrong addresses. One goroutine at a time may use it.
type Finder struct {
	Config
	// known has the pods of the last round.
	known map[types.UID]bool
	// evicted has the time of the last eviction by address.
	evicted map[netip.Addr]time.Time
}

// New returns a Finder.
func New(config Config) *Finder {
	return &Finder{Config: config, evicted: map[netip.Addr]time.Time{}}
}

// Run looks until ctx ends. The caches must be filled.
func (f *Finder) Run(ctx context.Context) { wait.UntilWithContext(ctx, f.round, interval) }

func (f *Finder) round(ctx context.Context) {
	logger := klog.FromContext(ctx)
	pods, err := f.Pods.List(labels.Everything())
	if err != nil {
		logger.Error(err, "Cannot look for pods with wrong addresses")
		return
	}
	for addr, at := range f.evicted {
		if time.Since(at) >= rest {
			delete(f.evicted, addr)
		}
	}
	found, evictions := map[types.UID]bool{}, 0
	for _, pod := range pods {
		own := Of(pod, f.Recorded)
		if len(own) == 0 {
			continue
		}
		found[pod.UID] = true
		if !f.known[pod.UID] {
			// Only pods that are found twice count: after one round the status may just be late.
			f.say(ctx, pod, own)
			continue
		}
		if evictions == mostEvictions || !f.mayEvict(pod, own) {
			continue
		}
		evictions++
		if err := f.evict(ctx, pod); err != nil {
			logger.Error(err, "Cannot evict a pod with a wrong address, will try again", "pod", klog.KObj(pod), "node", pod.Spec.NodeName)
			continue
		}
		for _, addr := range own {
			f.evicted[addr] = time.Now()
		}
		logger.Info("Evicted a pod with a wrong address", "pod", klog.KObj(pod), "node", pod.Spec.NodeName, "floatingIPs", own)
	}
	f.known = found
	f.Count.Set(float64(len(found)))
}

// mayEvict says whether the pod's workload will create a new pod, and no pod with its addresses was
// evicted recently.
func (f *Finder) mayEvict(pod *v1.Pod, own []netip.Addr) bool {
	return f.Evict != nil && metav1.GetControllerOfNoCopy(pod) != nil &&
		!slices.ContainsFunc(own, func(addr netip.Addr) bool { return !f.evicted[addr].IsZero() })
}

func (f *Finder) evict(ctx context.Context, pod *v1.Pod) error {
	return f.Evict(ctx, &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}},
	})
}

func (f *Finder) say(ctx context.Context, pod *v1.Pod, own []netip.Addr) {
	var has []string
	for _, ip := range pod.Status.PodIPs {
		has = append(has, ip.IP)
	}
	note := fmt.Sprintf("The pod runs with %s on node %s instead of its own %s, for which no node answers: another CNI plugin made the pod's network. Delete the pod, so that it gets its address on a node with a ready agent",
		strings.Join(has, ", "), pod.Spec.NodeName, strings.Join(iprange.Texts(own), ", "))
	event.Warning(EventWrongAddress, note).Record(f.Events, pod, nil, "Compare")
	klog.FromContext(ctx).Info("A pod runs with a wrong address", "pod", klog.KObj(pod), "node", pod.Spec.NodeName, "has", has, "floatingIPs", own)
}
