// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/berth-dev/berth/agent/policy"
)

// store holds namespaces and pods. The zero value is empty. It is not safe for parallel use.
type store struct {
	spaces map[string]*space
	shapes shapes
	odd    map[*record]odd
	// ahead has the resource versions, by name, of objects that were read ahead of the watch: older
	// versions must not replace them.
	ahead map[types.NamespacedName]string
	// version is the resource version up to which the watch has reported pods.
	version string
	// pass counts the full lists of pods, spacePass of namespaces.
	pass, spacePass uint32
	pods            int
}

// space is a namespace.
type space struct {
	// shape has the namespace's labels; it is nil while only pods of it are known.
	shape *shape
	pass  uint32
	pods  map[string]*record
}

// podUpdate has a pod before and after a change. Both are nil if nothing changed.
type podUpdate struct{ was, is *policy.Pod }

func (s *store) space(name string) *space {
	sp := s.spaces[name]
	if sp == nil {
		sp = &space{}
		if s.spaces == nil {
			s.spaces = map[string]*space{}
		}
		s.spaces[name] = sp
	}
	return sp
}

func (s *store) tidy(name string, sp *space) {
	if sp.shape != nil || len(sp.pods) > 0 {
		return
	}
	if delete(s.spaces, name); len(s.spaces) == 0 {
		s.spaces = nil
	}
}

// setNamespace reports whether the labels are new.
func (s *store) setNamespace(name string, labels map[string]string) bool {
	sp := s.space(name)
	sp.pass = s.spacePass
	had := sp.shape
	s.shapes.write("", labels, nil)
	sp.shape = s.shapes.swap(had)
	return sp.shape != had
}

// deleteNamespace reports whether the namespace was known.
func (s *store) deleteNamespace(name string) bool {
	sp := s.spaces[name]
	if sp == nil || sp.shape == nil {
		return false
	}
	s.shapes.release(sp.shape)
	sp.shape = nil
	s.tidy(name, sp)
	return true
}

// set stores the pod. A replaced pod has another UID.
func (s *store) set(pod *policy.Pod) podUpdate {
	sp := s.space(pod.Namespace)
	had := sp.pods[pod.Name]
	s.shapes.write(pod.Name, pod.Labels, pod.Ports)
	now, rest, fits := pack(pod.UID, pod.Addresses)
	now.pass = s.pass
	if had != nil && s.isSame(had, &now, rest) && had.shape.text == string(s.shapes.text) {
		had.pass = s.pass
		return podUpdate{}
	}
	var c podUpdate
	if had == nil {
		had = &record{}
		if sp.pods == nil {
			sp.pods = map[string]*record{}
		}
		sp.pods[pod.Name] = had
		s.pods++
	} else {
		c.was = s.read(pod.NamespacedName, had)
	}
	now.shape = s.shapes.swap(had.shape)
	*had = now
	delete(s.odd, had)
	if !fits {
		if s.odd == nil {
			s.odd = map[*record]odd{}
		}
		s.odd[had] = rest
	}
	c.is = s.read(pod.NamespacedName, had)
	return c
}

func (s *store) isSame(had, now *record, rest odd) bool {
	before := s.odd[had]
	return had.uid == now.uid && had.v4 == now.v4 && had.v6 == now.v6 && before.uid == rest.uid && slices.Equal(before.addresses, rest.addresses)
}

// delete forgets the pod, if it still has the UID.
func (s *store) delete(name types.NamespacedName, uid types.UID) podUpdate {
	sp := s.spaces[name.Namespace]
	if sp == nil || sp.pods[name.Name] == nil || s.uidOf(sp.pods[name.Name]) != uid {
		return podUpdate{}
	}
	c := podUpdate{was: s.read(name, sp.pods[name.Name])}
	s.remove(name.Name, sp)
	s.tidy(name.Namespace, sp)
	return c
}

func (s *store) remove(name string, sp *space) {
	r := sp.pods[name]
	delete(sp.pods, name)
	delete(s.odd, r)
	s.shapes.release(r.shape)
	s.pods--
	if len(sp.pods) == 0 {
		sp.pods = nil
	}
}

func (s *store) uid(name types.NamespacedName) types.UID {
	sp := s.spaces[name.Namespace]
	if sp == nil || sp.pods[name.Name] == nil {
		return ""
	}
	return s.uidOf(sp.pods[name.Name])
}

func (s *store) uidOf(r *record) types.UID {
	if r.uid == uuid.Nil {
		return s.odd[r].uid
	}
	return types.UID(r.uid.String())
}

func (s *store) addresses(r *record, to []netip.Addr) []netip.Addr {
	if r.uid == uuid.Nil {
		return append(to, s.odd[r].addresses...)
	}
	if r.v4 != [4]byte{} {
		to = append(to, netip.AddrFrom4(r.v4))
	}
	if r.v6 != [16]byte{} {
		to = append(to, netip.AddrFrom16(r.v6))
	}
	return to
}

func (s *store) pod(name types.NamespacedName) *policy.Pod {
	sp := s.spaces[name.Namespace]
	if sp == nil || sp.pods[name.Name] == nil {
		return nil
	}
	return s.read(name, sp.pods[name.Name])
}

func (s *store) read(name types.NamespacedName, r *record) *policy.Pod {
	pod := &policy.Pod{NamespacedName: name, UID: s.uidOf(r), Addresses: s.addresses(r, nil)}
	pod.Labels, pod.Ports = r.shape.read(name.Name)
	return pod
}

func (s *store) namespaces() iter.Seq2[string, map[string]string] {
	return func(yield func(string, map[string]string) bool) {
		for name, sp := range s.spaces {
			if sp.shape == nil {
				continue
			}
			if labels, _ := sp.shape.read(""); !yield(name, labels) {
				return
			}
		}
	}
}

// podsOf yields the pods of a namespace. The pod and its addresses are valid until the next
// iteration; labels and ports stay valid.
func (s *store) podsOf(namespace string) iter.Seq[*policy.Pod] {
	type parts struct {
		labels map[string]string
		ports  []policy.NamedPort
	}
	return func(yield func(*policy.Pod) bool) {
		sp := s.spaces[namespace]
		if sp == nil {
			return
		}
		read := map[*shape]parts{}
		var pod policy.Pod
		var addresses []netip.Addr
		for name, r := range sp.pods {
			p, ok := read[r.shape]
			if !ok {
				p.labels, p.ports = r.shape.read(name)
				if !r.shape.isOwn() {
					read[r.shape] = p
				}
			}
			addresses = s.addresses(r, addresses[:0])
			pod = policy.Pod{
				NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}, UID: s.uidOf(r),
				Labels: p.labels, Addresses: addresses, Ports: p.ports,
			}
			if !yield(&pod) {
				return
			}
		}
	}
}

// isNewer reports whether an object is not older than the version read ahead of the watch. If so,
// the watch has caught up.
func (s *store) isNewer(name types.NamespacedName, version string) bool {
	read, ok := s.ahead[name]
	if !ok {
		return true
	}
	if order, err := resourceversion.CompareResourceVersion(version, read); err == nil && order < 0 {
		return false
	}
	if delete(s.ahead, name); len(s.ahead) == 0 {
		s.ahead = nil
	}
	return true
}

// hasCaughtUp reports whether the watch has reported the pods up to a version.
func (s *store) hasCaughtUp(version string) bool {
	order, err := resourceversion.CompareResourceVersion(version, s.version)
	return err == nil && order <= 0
}

func (s *store) readAhead(name types.NamespacedName, version string) {
	if s.ahead == nil {
		s.ahead = map[types.NamespacedName]string{}
	}
	s.ahead[name] = version
}

// sweepNamespaces forgets the namespaces that were not in the last full list, of this version, and
// returns their names.
func (s *store) sweepNamespaces(version string) []string {
	var gone []string
	for name, sp := range s.spaces {
		if sp.shape != nil && sp.pass != s.spacePass && s.isNewer(types.NamespacedName{Name: name}, version) {
			gone = append(gone, name)
		}
	}
	slices.Sort(gone)
	for _, name := range gone {
		s.deleteNamespace(name)
	}
	return gone
}

// sweepPods forgets the pods of a namespace that were not in the last full list, and yields each.
func (s *store) sweepPods(namespace, version string, gone func(podUpdate)) {
	sp := s.spaces[namespace]
	if sp == nil {
		return
	}
	before := len(sp.pods)
	for name, r := range sp.pods {
		full := types.NamespacedName{Namespace: namespace, Name: name}
		if r.pass == s.pass || !s.isNewer(full, version) {
			continue
		}
		c := podUpdate{was: s.read(full, r)}
		s.remove(name, sp)
		gone(c)
	}
	if len(sp.pods) < before/2 {
		// A map keeps its size, and so does its clone.
		sp.pods = maps.Collect(maps.All(sp.pods))
	}
	s.tidy(namespace, sp)
}
