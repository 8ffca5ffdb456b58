// SPDX-License-Identifier: Apache-2.0

package register

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Row is a FloatingIP, without the fields that nobody asks for, as a register keeps it. [Register.Row] makes it.
type Row struct {
	// A search looks at all rows: what it needs is in the first 64 bytes, which processors fetch at once.
	addr                         netip.Addr
	pod                          string
	pool, namespace, owner, node id
	state                        state
	conflict                     bool
	// service says that a Service has the address: lastPod is its name.
	service bool
	// egress says that pods leave by the address of its owner.
	egress bool

	// lastNode is the node that an address at rest waits for.
	lastNode id
	// identity is the UID and the resourceVersion, with a space between.
	identity, lastPod          string
	since, released            int64 // seconds since 1970; 0: not set
	kind, rule, subnet, reason id
}

// state is a state of FloatingIPs in a byte.
type state uint8

var states = []standing.State{standing.Held, standing.Retained, standing.Cooling, standing.Reserved}

func (s state) of() standing.State { return states[s] }

// version returns the UID and the resourceVersion of the FloatingIP.
func (r *Row) version() (uid types.UID, version string) {
	first, version, _ := strings.Cut(r.identity, " ")
	return types.UID(first), version
}

// rowOf returns the row of a FloatingIP. ok is false if its name is no address, which the API server admits never.
func (n *names) rowOf(ip *v1alpha1.FloatingIP) (r *Row, ok bool) {
	addr, err := v1alpha1.AddrOf(ip.Name)
	if err != nil {
		return nil, false
	}
	spec := &ip.Spec
	r = &Row{
		addr: addr, identity: string(ip.UID) + " " + ip.ResourceVersion, lastPod: spec.LastPod, reason: n.use(ip.Annotations[v1alpha1.AnnotationReason]),
		since: seconds(spec.Since), released: seconds(spec.ReleasedAt),
		pool: n.use(spec.Pool), node: n.use(spec.Node), rule: n.use(string(spec.ReleasePolicy)),
		state: state(slices.Index(states, standing.Of(ip))), conflict: ip.InConflict(), //nolint:gosec // an index of a short list
	}
	if last := spec.LastNode; last != nil && spec.Owner == nil {
		r.lastNode = n.use(last.Name)
	}
	if spec.Network != nil {
		r.subnet = n.use(spec.Network.Subnet)
	}
	if spec.Pod != nil {
		r.pod = spec.Pod.Name
	}
	if spec.Service != nil {
		r.service, r.lastPod = true, spec.Service.Name
	}
	r.egress = spec.Egress != nil
	if owner := spec.Owner; owner != nil {
		r.namespace, r.kind, r.owner = n.use(owner.Namespace), n.use(owner.Kind), n.use(owner.Name)
	}
	return r, true
}

// GetObjectMeta returns the name by which client-go keeps the row while it lists.
func (r *Row) GetObjectMeta() metav1.Object {
	uid, version := r.version()
	return &metav1.ObjectMeta{Name: v1alpha1.NameOf(r.addr), UID: uid, ResourceVersion: version}
}

var _ metav1.ObjectMetaAccessor = (*Row)(nil)

// ids returns all ids of the row.
func (r *Row) ids() [9]*id {
	return [...]*id{&r.pool, &r.namespace, &r.kind, &r.owner, &r.node, &r.rule, &r.subnet, &r.reason, &r.lastNode}
}

// moveTo uses the names of the row in another table.
func (r *Row) moveTo(n, to *names) {
	for _, of := range r.ids() {
		if *of != 0 {
			*of = to.use(n.of(*of))
		}
	}
}

func (n *names) forget(r *Row) {
	for _, of := range r.ids() {
		if *of != 0 {
			n.drop(*of)
		}
	}
}

// floatingIP returns the FloatingIP, with the fields that the row has.
func (n *names) floatingIP(r *Row) *v1alpha1.FloatingIP {
	uid, version := r.version()
	ip := &v1alpha1.FloatingIP{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NameOf(r.addr), UID: uid, ResourceVersion: version},
		Spec: v1alpha1.FloatingIPSpec{
			Address: r.addr.String(), Pool: n.of(r.pool), Node: n.of(r.node), LastPod: r.lastPod, ReleasePolicy: v1alpha1.ReleasePolicy(n.of(r.rule)),
			Reserved: r.state.of() == standing.Reserved, Since: moment(r.since), ReleasedAt: moment(r.released),
		},
	}
	if r.subnet != 0 {
		ip.Spec.Network = &v1alpha1.Network{Subnet: n.of(r.subnet)}
	}
	if r.lastNode != 0 {
		ip.Spec.LastNode = &v1alpha1.NodeReference{Name: n.of(r.lastNode)}
	}
	if r.owner != 0 {
		ip.Spec.Owner = &v1alpha1.Owner{Kind: n.of(r.kind), Namespace: n.of(r.namespace), Name: n.of(r.owner)}
		if r.namespace == 0 { // A Node is the one owner without a namespace.
			ip.Spec.Owner.APIVersion = "v1"
		}
	}
	if r.service {
		ip.Spec.Service, ip.Spec.LastPod = &v1alpha1.ServiceReference{Name: r.lastPod}, ""
	}
	if r.egress {
		ip.Spec.Egress = &v1alpha1.EgressHolder{}
	}
	if r.pod != "" {
		ip.Spec.Pod = &v1alpha1.PodReference{Name: r.pod}
	}
	if r.reason != 0 {
		ip.Annotations = map[string]string{v1alpha1.AnnotationReason: n.of(r.reason)}
	}
	if r.conflict {
		ip.Status.Conditions = []metav1.Condition{{Type: v1alpha1.FloatingIPConflict, Status: metav1.ConditionTrue}}
	}
	return ip
}

func seconds(at *metav1.Time) int64 {
	if at == nil || at.IsZero() {
		return 0
	}
	return at.Unix()
}

func moment(at int64) *metav1.Time {
	if at == 0 {
		return nil
	}
	return &metav1.Time{Time: time.Unix(at, 0).UTC()}
}
