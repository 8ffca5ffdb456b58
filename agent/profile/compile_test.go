// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/shaping"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

func limit(rate string) *v1alpha1.BandwidthLimit {
	return &v1alpha1.BandwidthLimit{Rate: resource.MustParse(rate)}
}

func profiles() map[string]*v1alpha1.NetworkProfile {
	burst, tooMuch, noDSCP := resource.MustParse("1Mi"), resource.MustParse("8Gi"), int32(64)
	all := map[string]*v1alpha1.NetworkProfile{
		"slow":     {Spec: v1alpha1.NetworkProfileSpec{Ingress: limit("10M"), Egress: &v1alpha1.BandwidthLimit{Rate: resource.MustParse("5M"), Burst: &burst}}},
		"bulk":     {Spec: v1alpha1.NetworkProfileSpec{Scope: v1alpha1.ScopeNode, Egress: limit("1G")}},
		"voice":    {Spec: v1alpha1.NetworkProfileSpec{DSCP: new(int32(46)), NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "voice"}}}},
		"broken":   {Spec: v1alpha1.NetworkProfileSpec{Ingress: limit("1"), Egress: &v1alpha1.BandwidthLimit{Rate: resource.MustParse("1M"), Burst: &tooMuch}, DSCP: &noDSCP}},
		"selector": {Spec: v1alpha1.NetworkProfileSpec{NamespaceSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "x", Operator: "Near"}}}}},
	}
	for name, p := range all {
		p.Name = name
	}
	return all
}

func TestCompile(t *testing.T) {
	seen := &objects{profiles: profiles(), namespaces: map[string]namespace{
		"plain": {}, "voice": {labels: map[string]string{"team": "voice"}}, "slow": {profile: "slow"}, "imposed": {profile: "voice"}, "lost": {profile: "none"},
	}}
	const mbit = 1_000_000
	slow := shaping.Pod{ID: "u", Ingress: shaping.Limit{Rate: 10 * mbit}, Egress: shaping.Limit{Rate: 5 * mbit, Burst: 1 << 20}}
	for name, c := range map[string]struct {
		namespace, profile, ingress, egress string
		byPlugin                            bool
		want                                shaping.Pod
		problems                            []string // a word of the reason and one of the note each
	}{
		"nothing":                     {namespace: "plain", want: shaping.Pod{ID: "u"}},
		"annotations":                 {namespace: "plain", ingress: "20M", egress: "1500k", want: shaping.Pod{ID: "u", Ingress: shaping.Limit{Rate: 20 * mbit}, Egress: shaping.Limit{Rate: 1_500_000}}},
		"annotations that cannot be":  {namespace: "plain", ingress: "fast", egress: "10", want: shaping.Pod{ID: "u"}, problems: []string{EventInvalid, "egress-bandwidth", EventInvalid, "ingress-bandwidth"}},
		"of a plugin":                 {namespace: "plain", ingress: "20M", egress: "bad", byPlugin: true, want: shaping.Pod{ID: "u"}},
		"profile":                     {namespace: "plain", profile: "slow", want: slow},
		"profile and plugin":          {namespace: "plain", profile: "slow", ingress: "1M", byPlugin: true, want: slow},
		"lowered":                     {namespace: "plain", profile: "slow", ingress: "1M", egress: "100M", want: shaping.Pod{ID: "u", Ingress: shaping.Limit{Rate: mbit}, Egress: slow.Egress}},
		"group":                       {namespace: "plain", profile: "bulk", egress: "1M", want: shaping.Pod{ID: "u", Egress: shaping.Limit{Rate: mbit}, Group: &shaping.Group{Name: "bulk", Egress: shaping.Limit{Rate: 1000 * mbit}}}},
		"no such profile":             {namespace: "plain", profile: "none", egress: "1M", want: shaping.Pod{ID: "u", Egress: shaping.Limit{Rate: mbit}}, problems: []string{EventNotFound, "has no profile"}},
		"no such profile, namespace":  {namespace: "slow", profile: "none", want: slow, problems: []string{EventNotFound, `has the profile "slow"`}},
		"not for the namespace":       {namespace: "slow", profile: "voice", want: slow, problems: []string{EventNotAllowed, `has the profile "slow"`}},
		"selector":                    {namespace: "plain", profile: "selector", want: shaping.Pod{ID: "u"}, problems: []string{EventNotAllowed, "cannot be read"}},
		"for the namespace":           {namespace: "voice", profile: "voice", want: shaping.Pod{ID: "u", DSCP: new(uint8(46))}},
		"of the namespace":            {namespace: "slow", want: slow},
		"another":                     {namespace: "slow", profile: "bulk", want: shaping.Pod{ID: "u", Group: &shaping.Group{Name: "bulk", Egress: shaping.Limit{Rate: 1000 * mbit}}}},
		"imposed needs no selector":   {namespace: "imposed", profile: "voice", want: shaping.Pod{ID: "u", DSCP: new(uint8(46))}},
		"namespace names none":        {namespace: "lost", want: shaping.Pod{ID: "u"}, problems: []string{EventNotFound, `namespace "lost"`}},
		"profile that an old CRD let": {namespace: "plain", profile: "broken", want: shaping.Pod{ID: "u"}, problems: []string{EventInvalid, "spec.dscp", EventInvalid, "spec.egress", EventInvalid, "spec.ingress"}},
	} {
		t.Run(name, func(t *testing.T) {
			container := Container{Pod: api.Pod{Namespace: c.namespace, UID: "u"}, Known: true, ByPlugin: c.byPlugin, Annotations: map[string]string{
				v1alpha1.AnnotationNetworkProfile: c.profile, AnnotationIngress: c.ingress, AnnotationEgress: c.egress,
			}}
			got, problems, known := seen.compile(container)
			if !known {
				t.Error("compile() does not know")
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if len(problems) != len(c.problems)/2 {
				t.Fatalf("problems %v, want %v", problems, c.problems)
			}
			for i, p := range problems {
				if p.reason != c.problems[2*i] || !strings.Contains(p.note, c.problems[2*i+1]) {
					t.Errorf("problem %v, want %v", p, c.problems[2*i:2*i+2])
				}
			}
		})
	}
}

// Objects that are not known yet change nothing.
func TestCompileUnknown(t *testing.T) {
	pod := api.Pod{Namespace: "plain", UID: "u"}
	named := map[string]string{v1alpha1.AnnotationNetworkProfile: "slow"}
	for name, c := range map[string]struct {
		seen      *objects
		container Container
		known     bool
	}{
		"pod":          {&objects{namespaces: map[string]namespace{"plain": {}}, profiles: profiles()}, Container{Pod: pod}, false},
		"namespaces":   {&objects{profiles: profiles()}, Container{Pod: pod, Known: true}, false},
		"namespace":    {&objects{namespaces: map[string]namespace{"other": {}}, profiles: profiles()}, Container{Pod: pod, Known: true}, false},
		"profiles":     {&objects{namespaces: map[string]namespace{"plain": {}}}, Container{Pod: pod, Known: true, Annotations: named}, false},
		"of namespace": {&objects{namespaces: map[string]namespace{"plain": {profile: "slow"}}}, Container{Pod: pod, Known: true}, false},
		"no profile":   {&objects{namespaces: map[string]namespace{"plain": {}}}, Container{Pod: pod, Known: true}, true},
	} {
		if _, _, known := c.seen.compile(c.container); known != c.known {
			t.Errorf("without the %s: known is %v", name, known)
		}
	}
}

func FuzzParseRate(f *testing.F) {
	for _, seed := range []string{"10M", "1k", "1P", "0.5", "-1", "1e99", "", "999", "1000.5"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		rate, err := parseRate(text)
		if err == nil && (rate < shaping.MinRate || rate > shaping.MaxRate) {
			t.Errorf("parseRate(%q) = %d", text, rate)
		}
	})
}
