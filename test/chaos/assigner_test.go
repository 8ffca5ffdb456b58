// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	assignerv1 "github.com/berth-dev/berth/ipam/assigner/v1"
	"github.com/berth-dev/berth/test/assigner"
	"github.com/berth-dev/berth/test/simulation/kubelet"
)

// network is the network of the external assigner, and a witness: for every change it
// asks the API server which pod has the address. Safe for concurrent use.
type network struct {
	*assigner.Memory
	w *world

	mu      sync.Mutex
	random  *rand.Rand
	faults  networkFaults
	working int // requests in progress
	last    map[netip.Addr]attachment
	count   map[string]int
	calm    chan struct{} // closed when faults end
	judging bool
}

// networkFaults are probabilities of what befalls a change.
type networkFaults struct {
	// Fail refuses it; Hang lets the client's time pass; Lost does it and says that
	// it failed; Late does it after a while, perhaps when the client has given up.
	Fail, Hang, Lost, Late float64
	Delay                  time.Duration
}

// attachment is the last change of an address.
type attachment struct {
	node     string // "": detached
	revision uint64
	pod      string
	at       time.Time
}

// startAssigner starts the server. It ends with the test.
func (w *world) startAssigner() {
	w.T.Helper()
	w.network = &network{
		Memory: assigner.NewMemory(), w: w, random: rand.New(rand.NewPCG(w.seed, 1<<32)),
		last: map[netip.Addr]attachment{}, count: map[string]int{}, calm: make(chan struct{}),
	}
	w.assignerAddress = w.Assigner(assigner.NewServer(w.network))
}

// set makes faults happen from now on; the zero networkFaults end them, also those
// that a request suffers just now.
func (n *network) set(faults networkFaults) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.faults = faults
	if faults == (networkFaults{}) {
		close(n.calm)
		n.calm = make(chan struct{})
	}
}

// judge says whether what it sees is complained about.
func (n *network) judge(judging bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.judging = judging
}

func (n *network) judges() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.judging
}

func (n *network) violation(format string, args ...any) {
	if n.judges() {
		n.w.violation(format, args...)
	} else {
		n.w.say("both schedulers work: "+format, args...)
	}
}

// forget detaches an address as an administrator.
func (n *network) forget(addr netip.Addr) {
	_ = n.Memory.Detach(n.w.Ctx, addr) // it does not fail
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.last, addr)
}

func (n *network) Attach(ctx context.Context, addr netip.Addr, request *assignerv1.AttachRequest) error {
	next := attachment{node: request.GetNode().GetName(), revision: request.GetRevision(), pod: request.GetPod().GetUid()}
	return n.change(ctx, addr, next, func() error { return n.Memory.Attach(context.WithoutCancel(ctx), addr, request) })
}

func (n *network) Detach(ctx context.Context, addr netip.Addr) error {
	return n.change(ctx, addr, attachment{}, func() error { return n.Memory.Detach(context.WithoutCancel(ctx), addr) })
}

func (n *network) change(ctx context.Context, addr netip.Addr, next attachment, do func() error) error {
	n.mu.Lock()
	n.working++
	chance := func(name string, probability float64) bool {
		hit := probability > 0 && n.random.Float64() < probability
		if hit {
			n.count[name]++
		}
		return hit
	}
	fail, hang, lost, late := chance("fail", n.faults.Fail), chance("hang", n.faults.Hang), chance("lost", n.faults.Lost), chance("late", n.faults.Late)
	code := []codes.Code{codes.Unavailable, codes.ResourceExhausted, codes.FailedPrecondition, codes.Internal, codes.Unknown}[n.random.IntN(5)]
	delay := time.Duration(n.random.Int64N(int64(max(1, n.faults.Delay))))
	calm := n.calm
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		n.working--
		n.mu.Unlock()
	}()
	injected := status.Error(code, "injected by the test")
	switch {
	case fail:
		return injected
	case hang:
		select {
		case <-ctx.Done():
		case <-calm:
		}
		return injected
	case late:
		select {
		case <-time.After(delay):
		case <-calm:
		case <-n.w.Ctx.Done():
		}
	}
	before := n.runner(addr)
	if err := do(); err != nil {
		return err
	}
	next.at = time.Now()
	n.mu.Lock()
	was := n.last[addr]
	n.last[addr] = next
	n.count["done"]++
	n.mu.Unlock()
	if before != nil && before.node != next.node {
		if after := n.runner(addr); after != nil && *after == *before {
			n.violation("%s is attached to %q for pod %q (revision %d) while live pod %s (%s) has it on %s; it was attached to %q (revision %d)",
				v1alpha1.NameOf(addr), next.node, next.pod, next.revision, before.name, before.uid, before.node, was.node, was.revision)
		}
	}
	if lost {
		return injected
	}
	return nil
}

// runner is a live pod that has an address, by the API server's word: it is bound,
// and the FloatingIP records it on its node.
type runner struct{ name, uid, node string }

func (n *network) runner(addr netip.Addr) *runner {
	ip, err := n.w.Berth.FloatingIPs.Get(n.w.Ctx, v1alpha1.NameOf(addr), metav1.GetOptions{})
	if err != nil || ip.Spec.Pod == nil || ip.Spec.Owner == nil {
		n.unless(apierrors.IsNotFound, err)
		return nil
	}
	pod, err := n.w.Kube.CoreV1().Pods(ip.Spec.Owner.Namespace).Get(n.w.Ctx, ip.Spec.Pod.Name, metav1.GetOptions{})
	if err != nil || pod.UID != ip.Spec.Pod.UID || kubelet.Finished(pod) || pod.Spec.NodeName == "" || pod.Spec.NodeName != ip.Spec.Node {
		n.unless(apierrors.IsNotFound, err)
		return nil
	}
	return &runner{pod.Namespace + "/" + pod.Name, string(pod.UID), pod.Spec.NodeName}
}

func (n *network) unless(is func(error) bool, err error) {
	if err != nil && !is(err) && n.w.Ctx.Err() == nil {
		n.w.say("the imitated network asks in vain: %v", err)
	}
}

// freed is told that an address is nobody's, or its owner's to give to another pod,
// since a version: it must have been detached before.
func (n *network) freed(name string, version uint64) {
	addr, err := v1alpha1.AddrOf(name)
	if err != nil {
		return
	}
	n.mu.Lock()
	last := n.last[addr]
	n.mu.Unlock()
	if last.node != "" && last.revision < version {
		n.violation("%s is free since version %d, but attached to %s for pod %s by revision %d, %.3f s", name, version, last.node, last.pod, last.revision, last.at.Sub(n.w.started).Seconds())
	}
}

// holders is where every attached address is, and whether that may change by what
// is in progress.
func (n *network) holders() (holders map[netip.Addr]string, settled bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.Memory.Holders(), n.working == 0
}

func (n *network) done() map[string]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	count := map[string]int{}
	for name, k := range n.count {
		count["assigner "+name] = k
	}
	return count
}

func (d *driver) assignerFaults() *action {
	level := func() float64 { return []float64{0, 0.05, 0.2, 0.6}[d.random.IntN(4)] }
	f := networkFaults{Fail: level(), Hang: level(), Lost: level(), Late: level(), Delay: time.Duration(100+d.random.IntN(4000)) * time.Millisecond}
	while := time.Duration(1000+d.random.IntN(6000)) * time.Millisecond
	return &action{fmt.Sprintf("faults for the external assigner, for %s: fail %.2f, hang %.2f, lost %.2f, late %.2f by %s", while, f.Fail, f.Hang, f.Lost, f.Late, f.Delay), func(*rand.Rand) error {
		d.w.network.set(f)
		d.after(while, func() { d.w.network.set(networkFaults{}) })
		return nil
	}}
}

// cloud is the pool of the external assigner, or another one while both schedulers
// work: for that its protocol is not made.
func (d *driver) cloud() string {
	if d.elect.schedulers {
		return "cloud"
	}
	return "any"
}

// inCloud says whether a workload's addresses come from that pool.
func (d *driver) inCloud(wl *workload) bool {
	for _, c := range d.claimsOf(wl.namespace) {
		if c.name == wl.annotations[v1alpha1.AnnotationClaim] && c.kind == "cloud" {
			return true
		}
	}
	return slices.Contains(wl.shape, "cloud") || strings.Contains(wl.annotations[v1alpha1.AnnotationPools], "cloud")
}

// leaveCloud deletes what is in that pool when both schedulers begin to work.
func (d *driver) leaveCloud() error {
	if d.elect.schedulers {
		return nil
	}
	for _, wl := range d.live() {
		if d.inCloud(wl) {
			wl.deleted = true
			if err := d.delete(wl, metav1.DeletePropagationBackground); err != nil && !expected(err) {
				return err
			}
		}
	}
	for _, c := range d.claims {
		if c.kind == "cloud" && !c.deleted {
			if err := d.endClaim(c); err != nil && !expected(err) {
				return err
			}
		}
	}
	return nil
}

// judgeAttached looks at what Attached found at rest. Where the controller told that an address may
// be attached to another node than its pod's, an administrator deletes the pod. Where both
// schedulers worked at once, for which the protocol is not made, or where a backup was restored, of
// which the network knows nothing, he deletes the pods whose address is elsewhere and detaches what
// is free.
func (d *driver) judgeAttached(pods map[string]string, free map[netip.Addr]string) []string {
	var wrong []string
	for uid, text := range pods {
		wrong = append(wrong, text)
		if pod := d.podOf(uid); pod != nil && (!d.w.network.judges() || d.abandoned || d.misplaced(pod)) {
			d.w.say("delete pod %s/%s: %s", pod.Namespace, pod.Name, text)
			if err := d.deletePod(pod); err != nil && !expected(err) {
				wrong = append(wrong, err.Error())
			}
		}
	}
	for addr, text := range free {
		if !d.w.network.judges() || d.abandoned {
			d.w.say("detach %s: %s", addr, text)
			d.w.network.forget(addr)
			continue
		}
		wrong = append(wrong, text)
	}
	return wrong
}

func (d *driver) podOf(uid string) *v1.Pod {
	pods, _ := d.w.Kubelets.Pods.List(everything)
	for _, pod := range pods {
		if string(pod.UID) == uid {
			return pod
		}
	}
	return nil
}

// misplaced says whether there is an event of this name about a pod.
func (d *driver) misplaced(pod *v1.Pod) bool {
	list, err := d.w.Kube.EventsV1().Events(pod.Namespace).List(d.w.Ctx, metav1.ListOptions{FieldSelector: "reason=Misplaced,regarding.name=" + pod.Name})
	if err != nil {
		d.w.say("list events: %v", err)
		return false
	}
	return len(list.Items) > 0
}
