// SPDX-License-Identifier: Apache-2.0

package register

import (
	"net/netip"
	"slices"
	"strings"
	"time"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Row is what a register keeps of a FloatingIP. [RowOf] makes it.
type Row struct {
	// A search needs the first 64 bytes alone, which processors fetch at once.
	addr                   netip.Addr
	pod                    string
	namespace, owner, node text

	state    state
	conflict bool
	// service says that a Service has the address: lastPod is its name.
	service bool
	// egress says that pods leave by the address of its owner.
	egress bool

	// lastNode is the node that an address at rest waits for.
	pool, lastNode text
	// identity is the UID and the resourceVersion, with a space between.
	identity, lastPod          string
	since, released            int64 // seconds since 1970; 0: not set
	kind, rule, subnet, reason text
	// twin is nil but in a live migration.
	twin *v1alpha1.Twin
}

// text is a text that many rows have: pools, namespaces, owners, nodes. There is one copy of it.
type text unique.Handle[string]

func textOf(s string) text {
	if s == "" {
		return text{}
	}
	return text(unique.Make(s))
}

func (t text) String() string {
	if t == (text{}) {
		return ""
	}
	return unique.Handle[string](t).Value()
}

// state is a state of FloatingIPs in a byte.
type state uint8

var states = []standing.State{standing.Held, standing.Retained, standing.Cooling, standing.Reserved}

func (s state) of() standing.State { return states[s] }

func (r *Row) version() (uid types.UID, version string) {
	first, version, _ := strings.Cut(r.identity, " ")
	return types.UID(first), version
}

// RowOf returns the row of a FloatingIP; ok: its name is an address, as the API server demands.
func RowOf(ip *v1alpha1.FloatingIP) (r *Row, ok bool) {
	addr, err := v1alpha1.AddrOf(ip.Name)
	if err != nil {
		return nil, false
	}
	spec := &ip.Spec
	r = &Row{
		addr: addr, identity: string(ip.UID) + " " + ip.ResourceVersion, lastPod: spec.LastPod, reason: textOf(ip.Annotations[v1alpha1.AnnotationReason]),
		since: seconds(spec.Since), released: seconds(spec.ReleasedAt),
		pool: textOf(spec.Pool), node: textOf(spec.Node), rule: textOf(string(spec.ReleasePolicy)),
		state: state(slices.Index(states, standing.Of(ip))), conflict: ip.InConflict(), //nolint:gosec // an index of a short list
	}
	if last := spec.LastNode; last != nil && spec.Owner == nil {
		r.lastNode = textOf(last.Name)
	}
	if spec.Network != nil {
		r.subnet = textOf(spec.Network.Subnet)
	}
	if spec.Pod != nil {
		r.pod = spec.Pod.Name
	}
	r.twin = spec.Twin
	if spec.Service != nil {
		r.service, r.lastPod = true, spec.Service.Name
	}
	r.egress = spec.Egress != nil
	if owner := spec.Owner; owner != nil {
		r.namespace, r.kind, r.owner = textOf(owner.Namespace), textOf(owner.Kind), textOf(owner.Name)
	}
	return r, true
}

// GetObjectMeta returns the name by which client-go keeps the row while it lists.
func (r *Row) GetObjectMeta() metav1.Object {
	uid, version := r.version()
	return &metav1.ObjectMeta{Name: v1alpha1.NameOf(r.addr), UID: uid, ResourceVersion: version}
}

var _ metav1.ObjectMetaAccessor = (*Row)(nil)

// floatingIP returns the FloatingIP, with the fields that the row has.
func floatingIP(r *Row) *v1alpha1.FloatingIP {
	uid, version := r.version()
	ip := &v1alpha1.FloatingIP{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NameOf(r.addr), UID: uid, ResourceVersion: version},
		Spec: v1alpha1.FloatingIPSpec{
			Address: r.addr.String(), Pool: r.pool.String(), Node: r.node.String(), LastPod: r.lastPod, ReleasePolicy: v1alpha1.ReleasePolicy(r.rule.String()),
			Reserved: r.state.of() == standing.Reserved, Since: moment(r.since), ReleasedAt: moment(r.released),
		},
	}
	if r.subnet != (text{}) {
		ip.Spec.Network = &v1alpha1.Network{Subnet: r.subnet.String()}
	}
	if r.lastNode != (text{}) {
		ip.Spec.LastNode = &v1alpha1.NodeReference{Name: r.lastNode.String()}
	}
	if r.owner != (text{}) {
		ip.Spec.Owner = &v1alpha1.Owner{Kind: r.kind.String(), Namespace: r.namespace.String(), Name: r.owner.String()}
		if r.namespace == (text{}) { // A Node is the one owner without a namespace.
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
		ip.Spec.Pod, ip.Spec.Twin = &v1alpha1.PodReference{Name: r.pod}, r.twin
	}
	if r.reason != (text{}) {
		ip.Annotations = map[string]string{v1alpha1.AnnotationReason: r.reason.String()}
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
