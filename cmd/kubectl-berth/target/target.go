// SPDX-License-Identifier: Apache-2.0

// Package target reads what a command is about: addresses, or an object. It takes what people
// write, what kubectl's -o name prints, and what the commands print themselves. It asks nobody
// whether there is such an object.
package target

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/iprange"
)

// Addresses is the Kind of a target that is addresses, and not an object.
const Addresses = "FloatingIP"

type Target struct {
	// Kind as Kubernetes writes it, or the user's word for a kind that is not known here.
	Kind            string
	Namespace, Name string
	// Range of Addresses. hostBits: it was written as one address with a prefix length.
	Range    iprange.Range
	hostBits string
}

// kinds have short names. Others are named as Kubernetes does, with their group if need be.
var kinds = []struct {
	kind, group, version, resource string
	namespaced                     bool
	short                          []string
}{
	{"Pod", "", "v1", "pods", true, []string{"po"}},
	{"Service", "", "v1", "services", true, []string{"svc"}},
	{"Node", "", "v1", "nodes", false, []string{"no"}},
	{"Namespace", "", "v1", "namespaces", false, []string{"ns"}},
	{"ReplicationController", "", "v1", "replicationcontrollers", true, []string{"rc"}},
	{"StatefulSet", "apps", "v1", "statefulsets", true, []string{"sts"}},
	{"Deployment", "apps", "v1", "deployments", true, []string{"deploy"}},
	{"DaemonSet", "apps", "v1", "daemonsets", true, []string{"ds"}},
	{"ReplicaSet", "apps", "v1", "replicasets", true, []string{"rs"}},
	{"Job", "batch", "v1", "jobs", true, nil},
	{"CronJob", "batch", "v1", "cronjobs", true, []string{"cj"}},
	{"IPClaim", v1alpha1.GroupName, v1alpha1.SchemeGroupVersion.Version, "ipclaims", true, []string{"claim", "claims"}},
	{"IPPool", v1alpha1.GroupName, v1alpha1.SchemeGroupVersion.Version, "ippools", false, []string{"pool", "pools"}},
	{Addresses, v1alpha1.GroupName, v1alpha1.SchemeGroupVersion.Version, "floatingips", false, []string{"fip"}},
}

// Resource returns how the API server serves a kind that is known here.
func Resource(kind string) (resource schema.GroupVersionResource, namespaced, known bool) {
	for _, k := range kinds {
		if k.kind == kind {
			return schema.GroupVersionResource{Group: k.group, Version: k.version, Resource: k.resource}, k.namespaced, true
		}
	}
	return schema.GroupVersionResource{}, true, false
}

// KindOf returns the kind of a word; ok is false for one that may also be the name of a namespace.
func KindOf(word string) (kind string, ok bool) {
	bare, group, _ := strings.Cut(word, ".")
	lower := strings.ToLower(bare)
	for _, k := range kinds {
		if (group == "" || group == k.group) && (lower == strings.ToLower(k.kind) || lower == k.resource || slices.Contains(k.short, lower)) {
			return k.kind, true
		}
	}
	return word, group != "" || isKind(word)
}

// isKind says whether a word is written as a kind is, and a name cannot be.
func isKind(word string) bool { return strings.IndexFunc(word, unicode.IsUpper) >= 0 }

// Join joins a kind and the word after it, "StatefulSet shop/web", as commands print owners.
func Join(words []string) []string {
	var joined []string
	for i := 0; i < len(words); i++ {
		word := words[i]
		if isKind(word) && !strings.ContainsAny(word, ":/.-") && i+1 < len(words) {
			i++
			word += " " + words[i]
		}
		joined = append(joined, word)
	}
	return joined
}

// Parse reads what a text names. A bare name is of the kind bare.
func Parse(text, bare string) (Target, error) {
	if addrs, is, err := parseAddresses(text); is || err != nil {
		return addrs, err
	}
	rest := text
	if before, namespace, ok := strings.Cut(text, " in "); ok { // as findings write an object
		kind, name, _ := strings.Cut(before, "/")
		rest = kind + "/" + namespace + "/" + name
	}
	t := Target{Kind: bare}
	if bare == Addresses {
		t.Kind = "Pod"
	}
	parts := strings.Split(strings.Replace(rest, " ", "/", 1), "/")
	kind, qualified := KindOf(parts[0])
	switch {
	case len(parts) > 3:
		return t, nothing(text, "it has too many parts")
	case len(parts) > 1 && qualified:
		t.Kind, parts = kind, parts[1:]
	case len(parts) == 3:
		return t, nothing(text, fmt.Sprintf("%q is no kind", parts[0]))
	}
	if t.Name = parts[len(parts)-1]; len(parts) == 2 {
		t.Namespace = parts[0]
	}
	if t.Kind == Addresses {
		addrs, is, err := parseAddresses(t.Name)
		if err == nil && !is {
			err = noAddress(t.Name)
		}
		if err != nil {
			return t, fmt.Errorf("%q: %w", text, err)
		}
		return addrs, nil
	}
	_, namespaced, _ := Resource(t.Kind)
	switch {
	case slices.Contains(parts, ""):
		return t, nothing(text, "a name is missing")
	case t.Namespace != "" && !namespaced:
		return t, fmt.Errorf("%q names nothing: %ss have no namespace; write %s", text, t.Kind, t.Name)
	}
	return t, nil
}

func nothing(text, why string) error {
	return fmt.Errorf("%q names nothing: %s; write an address, web-0 or shop/web-0, or KIND/NAME such as statefulset/web", text, why)
}

func noAddress(text string) error {
	return fmt.Errorf("%q is no address: write 10.0.70.2, 10.0.70.0/30 or 2001:db8::1", text)
}

// parseAddresses reads an address in any spelling, the name of a FloatingIP, a prefix, or
// FIRST-LAST; is says whether the text is meant as such.
func parseAddresses(text string) (t Target, is bool, err error) {
	plain := strings.NewReplacer("[", "", "]", "").Replace(text)
	addr, err := v1alpha1.AddrOf(plain)
	if err != nil {
		addr, err = netip.ParseAddr(plain)
	}
	switch {
	case err == nil && addr.Zone() != "":
		return t, true, errors.New("a floating IP has no zone: write " + addr.WithZone("").String())
	case err == nil:
		return Target{Kind: Addresses, Range: iprange.Single(addr.Unmap())}, true, nil
	}
	if prefix, err := netip.ParsePrefix(plain); err == nil {
		if addr := prefix.Addr(); addr.Is4In6() && prefix.Bits() >= 96 {
			prefix = netip.PrefixFrom(addr.Unmap(), prefix.Bits()-96)
		}
		t = Target{Kind: Addresses, Range: iprange.OfPrefix(prefix.Masked())}
		if prefix != prefix.Masked() {
			t.hostBits = fmt.Sprintf("%q is one address or %d: write %s or %s", text, t.Range.Size(), prefix.Addr(), prefix.Masked())
		}
		return t, true, nil
	}
	if first, _, ok := strings.Cut(plain, "-"); ok {
		if _, err := netip.ParseAddr(first); err == nil {
			span, err := iprange.Parse(plain)
			return Target{Kind: Addresses, Range: span}, true, err
		}
	}
	if plain != "" && strings.Trim(plain, "0123456789./") == "" || strings.Contains(plain, ":") {
		return t, true, noAddress(text)
	}
	return t, false, nil
}

func ParseAddr(text string) (netip.Addr, error) {
	t, is, err := parseAddresses(text)
	if err == nil && !is {
		err = noAddress(text)
	}
	if err != nil {
		return netip.Addr{}, err
	}
	return t.Addr()
}

func (t *Target) Addr() (netip.Addr, error) {
	if t.Range.First != t.Range.Last {
		return netip.Addr{}, fmt.Errorf("%s is %d addresses: name one", t, t.Range.Size())
	}
	return t.Range.First, nil
}

// Each returns all addresses of a target that is at most this many. A program that writes asks for
// exact ones: whoever copies an address with the prefix length of its network does not mean the
// whole network.
func (t *Target) Each(most uint64, exact bool) ([]netip.Addr, error) {
	switch {
	case t.Kind != Addresses:
		return nil, fmt.Errorf("%s is no address: kubectl berth where %s -o name prints its addresses", t, t.Word())
	case exact && t.hostBits != "":
		return nil, errors.New(t.hostBits)
	case t.Range.Size() > most:
		return nil, fmt.Errorf("%s is %d addresses: name no more than %d", t, t.Range.Size(), most)
	}
	var all []netip.Addr
	for addr := t.Range.First; t.Range.Contains(addr); addr = addr.Next() {
		all = append(all, addr)
	}
	return all, nil
}

func (t *Target) String() string {
	switch {
	case t.Kind == Addresses:
		return t.Range.String()
	case t.Namespace != "":
		return t.Kind + " " + t.Namespace + "/" + t.Name
	}
	return t.Kind + " " + t.Name
}

// Word returns the target as one word that [Parse] reads.
func (t *Target) Word() string { return strings.ToLower(strings.Replace(t.String(), " ", "/", 1)) }

// Is compares kinds as users write them: a kind, its plural, or one with its group.
func (t *Target) Is(kind string) bool {
	bare, _, _ := strings.Cut(t.Kind, ".")
	return strings.EqualFold(bare, kind) || strings.EqualFold(bare, kind+"s")
}

// Selector selects FloatingIPs that may be the target's.
func (t *Target) Selector() string {
	switch {
	case t.Kind == Addresses && t.Range.First == t.Range.Last:
		return "metadata.name=" + v1alpha1.NameOf(t.Range.First)
	case t.Kind == Addresses:
		return ""
	case t.Kind == "Node":
		return "spec.node=" + t.Name
	case t.Kind == "IPPool":
		return "spec.pool=" + t.Name
	}
	selector := "spec.owner.namespace=" + t.Namespace
	if t.Kind != "Pod" {
		selector = "spec.owner.name=" + t.Name + "," + selector
	}
	return selector
}

// Has says whether an address is the target's: a pod's also if it is kept for its name.
func (t *Target) Has(ip *v1alpha1.FloatingIP) bool {
	spec := &ip.Spec
	switch {
	case t.Kind == Addresses:
		addr, err := v1alpha1.AddrOf(ip.Name)
		return err == nil && t.Range.Contains(addr)
	case t.Kind == "Node":
		return spec.Node == t.Name
	case t.Kind == "IPPool":
		return spec.Pool == t.Name
	case spec.Owner == nil || spec.Owner.Namespace != t.Namespace:
		return false
	case t.Kind != "Pod":
		return t.Is(spec.Owner.Kind) && spec.Owner.Name == t.Name
	case spec.Pod != nil:
		return spec.Pod.Name == t.Name || spec.Twin != nil && spec.Twin.Pod.Name == t.Name
	}
	return spec.Owner.PodName == t.Name || spec.Owner.PodName == "" && spec.LastPod == t.Name
}
