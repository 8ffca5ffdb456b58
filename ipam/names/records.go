// SPDX-License-Identifier: Apache-2.0

package names

import (
	"cmp"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// nameOf returns the name of an address in a domain; empty: it has none.
func nameOf(spec *v1alpha1.FloatingIPSpec, domain string) string {
	owner := spec.Owner
	// A Service has its name by ExternalDNS itself.
	if domain == "" || owner == nil || spec.Service != nil || spec.Pod == nil && spec.LastPod == "" {
		return ""
	}
	label := cmp.Or(owner.PodName, owner.Name)
	if len(content.IsDNS1123Label(label)) > 0 || len(content.IsDNS1123Label(owner.Namespace)) > 0 {
		return ""
	}
	return label + "." + owner.Namespace + "." + domain
}

// record is the record from a name to an address, or the one back.
type record struct {
	name string
	addr netip.Addr
	back bool
}

const (
	// parts is how many objects there are. It may never change: records would be in two of them.
	parts = 512
	// most is how many records an object may have, and addresses a name: ExternalDNS' definition
	// refuses more. A cluster has 600 records in an object; an answer of DNS has room for no more
	// addresses.
	most = 1000
)

// partOf returns the part of a record: all addresses of a name are in one.
func (r record) partOf() int {
	hash := fnv.New32a()
	if r.back {
		_, _ = hash.Write(r.addr.AsSlice()) // it never fails
	} else {
		_, _ = hash.Write([]byte(r.name))
	}
	return int(hash.Sum32() % parts)
}

// kind returns the type of the record.
func (r record) kind() string {
	switch {
	case r.back:
		return "PTR"
	case r.addr.Is4():
		return "A"
	}
	return "AAAA"
}

// specOf returns the spec of the object with these records.
func specOf(records []record) map[string]any {
	slices.SortFunc(records, func(a, b record) int {
		if a.back != b.back {
			return strings.Compare(a.kind(), b.kind())
		}
		if a.back {
			return a.addr.Compare(b.addr)
		}
		return cmp.Or(strings.Compare(a.name, b.name), a.addr.Compare(b.addr))
	})
	var endpoints []any
	var last map[string]any
	for _, r := range records {
		name, target := r.name, r.addr.String()
		if r.back {
			name, target = reverse(r.addr), r.name
		}
		if last != nil && last["dnsName"] == name && last["recordType"] == r.kind() {
			if targets := last["targets"].([]any); len(targets) < most {
				last["targets"] = append(targets, target)
			}
			continue
		}
		last = map[string]any{"dnsName": name, "recordType": r.kind(), "targets": []any{target}}
		endpoints = append(endpoints, last)
	}
	return map[string]any{"endpoints": endpoints}
}

// reverse returns the name that leads back from an address (RFC 1035, section 3.5; RFC 3596,
// section 2.5).
func reverse(addr netip.Addr) string {
	labels, zone := strings.Split(addr.String(), "."), "in-addr.arpa"
	if addr.Is6() {
		labels, zone = strings.Split(strings.ReplaceAll(addr.StringExpanded(), ":", ""), ""), "ip6.arpa"
	}
	slices.Reverse(labels)
	return strings.Join(append(labels, zone), ".")
}
