// SPDX-License-Identifier: Apache-2.0

package galaxy

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAliases(t *testing.T) {
	for _, test := range []struct {
		name  string
		given map[string]string
		want  map[string]string
		err   string
	}{
		{name: "none", given: map[string]string{"other": "x"}, want: map[string]string{}},
		{name: "nil", want: map[string]string{}},
		{
			name:  "immutable",
			given: map[string]string{"k8s.v1.cni.galaxy.io/release-policy": "immutable"},
			want:  map[string]string{"berth.dev/release-policy": "Retain"},
		},
		{
			name:  "never",
			given: map[string]string{"k8s.v1.cni.galaxy.io/release-policy": "never"},
			want:  map[string]string{"berth.dev/release-policy": "Never"},
		},
		{
			name:  "anything else frees with the pod",
			given: map[string]string{"k8s.v1.cni.galaxy.io/release-policy": "Immutable"},
			want:  map[string]string{"berth.dev/release-policy": "PodDeleted"},
		},
		{
			name:  "a pool wins over the policy",
			given: map[string]string{"tke.cloud.tencent.com/eni-ip-pool": "front", "k8s.v1.cni.galaxy.io/release-policy": "immutable"},
			want:  map[string]string{"berth.dev/claim": "front"},
		},
		{
			name:  "an empty pool is none",
			given: map[string]string{"tke.cloud.tencent.com/eni-ip-pool": "", "k8s.v1.cni.galaxy.io/release-policy": "never"},
			want:  map[string]string{"berth.dev/release-policy": "Never"},
		},
		{
			name:  "ranges",
			given: map[string]string{"k8s.v1.cni.galaxy.io/args": `{"request_ip_range":[["10.0.70.2~10.0.70.9","10.0.70.20"],["10.0.71.7"]]}`},
			want:  map[string]string{"berth.dev/addresses": "10.0.70.2-10.0.70.9,10.0.70.20;10.0.71.7"},
		},
		{
			name:  "what Galaxy gave is not asked for again",
			given: map[string]string{"k8s.v1.cni.galaxy.io/args": `{"common":{"ipinfos":[{"ip":"10.0.70.2/24","vlan":0,"gateway":"10.0.70.1"}]}}`},
			want:  map[string]string{},
		},
		{
			name:  "null ranges",
			given: map[string]string{"k8s.v1.cni.galaxy.io/args": `{"request_ip_range":null}`},
			want:  map[string]string{},
		},
		{
			name:  "pool that no claim can be named after",
			given: map[string]string{"tke.cloud.tencent.com/eni-ip-pool": "front_end"},
			err:   `annotation tke.cloud.tencent.com/eni-ip-pool: "front_end" cannot be the name of an IPClaim`,
		},
		{
			name:  "not JSON",
			given: map[string]string{"k8s.v1.cni.galaxy.io/args": "request_ip_range"},
			err:   "annotation k8s.v1.cni.galaxy.io/args: parse as JSON",
		},
		{
			name:  "empty group",
			given: map[string]string{"k8s.v1.cni.galaxy.io/args": `{"request_ip_range":[["10.0.70.2"],[]]}`},
			err:   "request_ip_range[1] is empty",
		},
		{
			name:  "backwards",
			given: map[string]string{"k8s.v1.cni.galaxy.io/args": `{"request_ip_range":[["10.0.70.9~10.0.70.2"]]}`},
			err:   `request_ip_range[0][0]: "10.0.70.9~10.0.70.2" is backwards: write 10.0.70.2~10.0.70.9`,
		},
		{
			name:  "not an address",
			given: map[string]string{"k8s.v1.cni.galaxy.io/args": `{"request_ip_range":[["10.0.70.0/24"]]}`},
			err:   `request_ip_range[0][0]: "10.0.70.0/24": "10.0.70.0/24" is not a plain IP address`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := maps.Clone(test.given)
			got, err := Aliases(test.given)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) || got != nil {
					t.Fatalf("got %v, %v, want an error with %q", got, err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("wrong annotations (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, test.given); diff != "" {
				t.Errorf("the pod's annotations were changed:\n%s", diff)
			}
		})
	}
}

func TestAssignedAddresses(t *testing.T) {
	for text, want := range map[string]string{
		"":                          "",
		`{}`:                        "",
		`{"request_ip_range":[[]]}`: "",
		`{"common":{"ipinfos":[{"ip":"10.0.70.2/24"},{"ip":"10.0.71.3"}]}}`: "10.0.70.2 10.0.71.3",
		`{"common":{"ipinfos":[{"ip":"x"}]}}`:                               `annotation k8s.v1.cni.galaxy.io/args: common.ipinfos[0]: "x" is not an address`,
	} {
		addresses, err := AssignedAddresses(map[string]string{AnnotationArgs: text})
		var texts []string
		for _, addr := range addresses {
			texts = append(texts, addr.String())
		}
		got := strings.Join(texts, " ")
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}
