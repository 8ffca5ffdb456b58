// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/addressconflict"
	"github.com/berth-dev/berth/agent/announce"
	"github.com/berth-dev/berth/agent/answerer"
	"github.com/berth-dev/berth/agent/hostports"
	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/reconcile"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/agent/traffic"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/foreign"
	"github.com/berth-dev/berth/ipam/wakeup"
)

// Agent serves CNI calls. All methods may be called in parallel. It has the steps of the calls, and
// tells its parts of changes.
type Agent struct {
	*records
	*holdings
	*repairs
	*witness

	started     time.Time
	withdrawals *withdrawals
	attachments *attachments
	links       *pluginLinks
	orphans     *orphans
	lost        *lostRecords
	defence     *defence
	silence     *deadManSwitch
	early       *earlyStarts
	twins       *twins
}

// New returns an Agent that is idle until Run and the first call.
func New(o Options) *Agent {
	if o.Policies == nil {
		o.Policies = noPolicies{}
	}
	o.Policies = policing{o.Policies}
	if o.Egress == nil {
		o.Egress = noEgress{}
	}
	if o.Shaper == nil {
		o.Shaper = noShaper{}
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics(func(...metrics.Registerable) {})
	}
	if o.TellSoon == nil {
		o.TellSoon = func() {}
	}
	if o.Segment == nil {
		o.Segment = func(int) (answerer.Segment, error) { return nil, answerer.ErrNobodyToAsk }
	}
	r := &records{Options: &o, kept: wakeup.New(), traffic: &traffic.Memory{}}
	r.ports = hostports.New(hostports.Options{Store: o.Store, Pods: o.Pods, Forwarder: o.HostPorts, Range: o.HostPortRange})
	h := &holdings{records: r, conflicts: &addressconflict.Conflicts{Log: o.ConflictLog}}
	h.announcer = announce.New(h.announceAgain)
	w := &withdrawals{records: r, holdings: h}
	t := &attachments{r}
	links := &pluginLinks{records: r, attachments: t, adds: &w.adds, podLinks: foreign.Links}
	repairs := &repairs{records: r, holdings: h, withdrawals: w, links: links}
	h.answerer = answerer.New(o.Node, o.Segment, &answers{h, w, repairs}, o.Proxied)
	if !o.Proxied {
		h.conflicts.Asker = h.answerer
	}
	loose := &orphans{r}
	a := &Agent{
		records: r, holdings: h, repairs: repairs, witness: &witness{r, h, w, loose},
		started: time.Now(), withdrawals: w, attachments: t, links: links, orphans: loose, lost: &lostRecords{r},
		defence: &defence{records: r, holdings: h, withdrawals: w, heard: h.answerer.Claims()}, silence: &deadManSwitch{r, h}, early: &earlyStarts{holdings: h, unused: loose.removeLoose},
		twins: &twins{holdings: h, soon: wakeup.New()},
	}
	repairs.undo = a.undo
	r.reconciler = reconcile.New(reconcile.Work{
		Known:  func(key state.Key) bool { return a.Store.Get(key) != nil },
		Survey: repairs.survey, Check: repairs.repair, Finish: repairs.finish, Orphans: a.orphans.verify,
	})
	return a
}

// Errors that this package detects.
var (
	// ErrRequest is returned when a call lacks a variable that every runtime of
	// Kubernetes gives, or has an invalid one.
	ErrRequest = errors.New("bad CNI request")
	// ErrUnsupported is returned for a field of the configuration that other plugins
	// know and this agent does not serve.
	ErrUnsupported = errors.New("unsupported field in the CNI configuration")
	// ErrNodeNetNS is returned for an ADD to the network namespace of the node.
	ErrNodeNetNS = errors.New("the network namespace is the node's own")
	// ErrUnknownContainer is returned by Check for a container without a
	// record.
	ErrUnknownContainer = errors.New("container not known")
	// ErrNotReady is returned by Status while the agent cannot serve ADD.
	ErrNotReady = errors.New("agent not ready")
)

// Answerer returns the part that settles with other nodes which of them answers for an address.
func (a *Agent) Answerer() *answerer.Answerer { return a.holdings.answerer }

// resync is how often every record is compared with the kernel, because other programs change
// it, too.
const resync = time.Minute

// Run makes kernel and records agree, after a start, periodically and after changes, and
// repeats announcements. It returns when the context ends.
func (a *Agent) Run(ctx context.Context) {
	var group sync.WaitGroup
	group.Go(func() { a.holdings.announcer.Run(ctx) })
	group.Go(func() { a.reconciler.Run(ctx) })
	group.Go(func() { a.ports.Run(ctx) })
	group.Go(func() { a.lost.endAll(ctx) })
	group.Go(func() { a.defence.run(ctx) })
	// Before the kernel is compared with the records.
	a.silence.keep(ctx)
	a.noteStart(ctx)
	a.repairs.carryAll(ctx)
	group.Go(func() { a.silence.run(ctx) })
	// Only now: a node denies what it does not know to carry.
	group.Go(func() { a.holdings.answerer.Run(ctx) })
	group.Go(func() { a.twins.run(ctx) })
	if a.Unicast != nil {
		group.Go(func() { a.Unicast(ctx, a.holdings.answerer.Heard) })
	}
	wait.JitterUntilWithContext(ctx, a.Recheck, resync, 0.1, true)
	group.Wait()
}

// noteStart logs the records that the agent starts with, has the attachments finished whose
// containers ended meanwhile, and removes the kernel state that belongs to nothing.
func (a *Agent) noteStart(ctx context.Context) {
	logger := klog.FromContext(ctx)
	counts := map[state.Phase]int{}
	for _, record := range a.Store.List() {
		counts[record.Phase]++
		gone, err := netnsGone(record.NetNS)
		if err != nil {
			logger.Error(err, "Cannot see whether a container is still there", "containerID", record.ContainerID)
		}
		if gone {
			// It ended while no agent ran.
			a.reconciler.FinishSoon(record.Key())
		}
	}
	logger.Info("Started with the records of an earlier run", "adding", counts[state.Adding], "added", counts[state.Added],
		"deleting", counts[state.Deleting], "withdrawn", counts[state.Withdrawn])
	a.orphans.removeLoose(ctx)
	orphans, err := a.orphans.list(nil)
	if err != nil {
		logger.Error(err, "Cannot look for links without a record")
	}
	for _, o := range orphans {
		logger.Info("A link on this node has no record; it stays while the API says that a pod of this node holds its addresses, and until the DEL of its container or CNI GC", "link", o.Name, "ips", o.Addresses)
	}
}

// Recheck compares every record with the kernel soon; it returns at once. Its caller calls
// it after a change of the node's links.
func (a *Agent) Recheck(context.Context) {
	a.holdings.answerer.Recheck()
	a.Shaper.Recheck()
	a.Policies.Recheck()
	a.reconciler.SurveySoon()
	a.reconciler.OrphansSoon()
	a.ports.CheckSoon()
	a.twins.soon.Send()
}

// Came notes that a pod was bound to this node, and has others asked for its
// addresses before the runtime asks for its network. It returns at once.
func (a *Agent) Came(ctx context.Context, pod podinfo.Pod) {
	if a.Configuration != nil {
		a.Configuration.Came(pod.UID)
	}
	if pod.Wants > 0 && !pod.Finished {
		a.early.start(ctx, pod)
	}
}

// Addressed notes that a pod in a network of its own has an address.
func (a *Agent) Addressed(pod api.Pod) {
	if a.Configuration != nil {
		a.Configuration.Addressed(pod.UID, pod.String())
	}
}

// Changed notes that the annotations of a pod changed, or that a pod came.
func (a *Agent) Changed(api.Pod) {
	a.Shaper.Soon()
	a.Policies.Soon()
	a.TellSoon()
	a.twins.soon.Send()
}

// Readied notes that a pod became Ready, or is not any more: its addresses may be advertised only
// while it is.
func (a *Agent) Readied(pod api.Pod) {
	for _, record := range a.Store.List() {
		if record.WhenReady && record.Pod.Is(pod) && isRouted(record) {
			a.reconciler.CheckSoon(record.Key())
		}
	}
}

// Gone withdraws the addresses of a pod that is deleted, replaced or finished, in every phase of
// its records: it waits neither for an ADD or DEL under way nor for a plugin. Pods of the default
// network lose their host ports, and keep their addresses, which belong to the node, until DEL. A
// static pod runs on when its mirror is deleted.
func (a *Agent) Gone(ctx context.Context, pod api.Pod) error {
	gone := pod.Static == ""
	if !gone {
		alive, err := a.Pods.Alive(ctx, pod)
		if err != nil {
			return err
		}
		gone = !alive
	}
	var errs []error
	for _, record := range a.Store.List() {
		if gone && record.Pod.Is(pod) && hasScarce(record) {
			errs = append(errs, a.withdrawals.withdraw(ctx, record, podGone))
		}
	}
	if gone {
		errs = append(errs, a.ports.EndPod(ctx, pod))
		a.early.stop(pod.UID)
		a.holdings.answerer.Leave(pod.Identity())
	}
	a.reconciler.OrphansSoon()
	a.TellSoon()
	a.twins.soon.Send()
	return errors.Join(errs...)
}

// AnnounceAll announces every address that this node carries, now and some times more; it
// returns at once. Its caller calls it after a change of the uplink's MAC.
func (a *Agent) AnnounceAll(context.Context) {
	a.holdings.answerer.Recheck()
	for _, record := range a.Store.List() {
		if record.Phase == state.Added && len(record.Addresses()) > 0 {
			a.holdings.announcer.Soon(record)
		}
	}
}

// PreviewPolicies says what would change if policies were enforced for all pods of this node.
func (a *Agent) PreviewPolicies(ctx context.Context) (*inquiry.PolicyPreview, error) {
	if a.SurveyPolicies != nil {
		return a.SurveyPolicies(ctx, a)
	}
	return a.Policies.Preview(ctx)
}

// TracePolicy says which network policies decide on a connection of a pod of this node.
func (a *Agent) TracePolicy(_ context.Context, q inquiry.PolicyTrace) (string, error) {
	return a.Policies.Trace(q)
}
