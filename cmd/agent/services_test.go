// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestParseServicePrefixes(t *testing.T) {
	for words, want := range map[string]string{
		"":             "[] false",
		"ServiceCIDRs": "[] true",
		"10.96.0.0/12": "[10.96.0.0/12] false",
		"10.96.0.1/12": `--service-prefixes: "10.96.0.1/12" is neither ServiceCIDRs nor a prefix such as 10.96.0.0/12`,
		"servicecidrs": `--service-prefixes: "servicecidrs" is neither ServiceCIDRs nor a prefix such as 10.96.0.0/12`,
		"fd00:96::1":   `--service-prefixes: "fd00:96::1" is neither ServiceCIDRs nor a prefix such as 10.96.0.0/12`,
	} {
		var all []string
		if words != "" {
			all = []string{words}
		}
		given, ofAPI, err := parseServicePrefixes(all)
		got := fmt.Sprint(given, ofAPI)
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %s, want %s", words, got, want)
		}
	}
}

// The API is asked once a minute at most. An ADD waits for its first answer, and for none after
// that.
func TestServicePrefixes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, cidrs := 0, []string(nil)
		given, _, _ := parseServicePrefixes([]string{"169.254.20.10/32"})
		s := &servicePrefixes{given: given, list: func(context.Context, metav1.ListOptions) (*networkingv1.ServiceCIDRList, error) {
			asked++
			if cidrs == nil {
				return nil, errors.New("no answer")
			}
			return &networkingv1.ServiceCIDRList{Items: []networkingv1.ServiceCIDR{{Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}}}, nil
		}}
		expect := func(questions int, want string) {
			t.Helper()
			got, err := s.prefixes()
			if text := fmt.Sprint(got, err); text != want || asked != questions {
				t.Errorf("after %d questions %s, want after %d %s", asked, text, questions, want)
			}
		}
		expect(1, "[] list ServiceCIDRs, to which the pod sends by its node: no answer")
		cidrs = []string{"10.96.0.0/12", "fd00:96::/112"}
		expect(2, "[169.254.20.10/32 10.96.0.0/12 fd00:96::/112] <nil>")
		cidrs = nil
		expect(2, "[169.254.20.10/32 10.96.0.0/12 fd00:96::/112] <nil>")
		<-time.After(servicesFresh)
		expect(3, "[169.254.20.10/32 10.96.0.0/12 fd00:96::/112] <nil>")
		cidrs = []string{"10.97.0.0/16"}
		expect(4, "[169.254.20.10/32 10.97.0.0/16] <nil>")
	})
}
