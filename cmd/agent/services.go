// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/overlay"
)

// serviceCIDRs stands for the API's ServiceCIDRs in --service-prefixes.
const serviceCIDRs = "ServiceCIDRs"

const (
	// servicesFresh is for how long a list of ServiceCIDRs counts, which change next to never.
	servicesFresh = time.Minute
	// servicesPatience limits the question.
	servicesPatience = 5 * time.Second
)

// servicePrefixes are the prefixes to which pods with interfaces of their own send by their node.
// Methods are safe in parallel.
type servicePrefixes struct {
	given []netip.Prefix
	// list is nil where the API is not asked.
	list func(ctx context.Context, o metav1.ListOptions) (*networkingv1.ServiceCIDRList, error)

	mu     sync.Mutex
	listed []netip.Prefix
	at     time.Time
}

// newServicePrefixes returns the prefixes of --service-prefixes, which the options' validation has
// read. list asks the API.
func newServicePrefixes(words []string, list func(context.Context, metav1.ListOptions) (*networkingv1.ServiceCIDRList, error)) *servicePrefixes {
	given, ofAPI, _ := parseServicePrefixes(words)
	if !ofAPI {
		list = nil
	}
	return &servicePrefixes{given: given, list: list}
}

// parseServicePrefixes reads --service-prefixes, without ServiceCIDRs.
func parseServicePrefixes(words []string) (given []netip.Prefix, ofAPI bool, err error) {
	for _, word := range words {
		if word == serviceCIDRs {
			ofAPI = true
			continue
		}
		p, err := netip.ParsePrefix(word)
		if err != nil || p != p.Masked() {
			return nil, false, fmt.Errorf("--service-prefixes: %q is neither %s nor a prefix such as 10.96.0.0/12", word, serviceCIDRs)
		}
		given = append(given, p)
	}
	return given, ofAPI, nil
}

// prefixes returns all prefixes. It asks the API now and then, and returns an error while that has
// never answered.
func (s *servicePrefixes) prefixes() ([]netip.Prefix, error) {
	s.mu.Lock()
	listed, at := s.listed, s.at
	s.mu.Unlock()
	if s.list == nil || time.Since(at) < servicesFresh {
		return slices.Concat(s.given, listed), nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), servicesPatience) // a driver has no context
	defer cancel()
	found, err := s.list(ctx, metav1.ListOptions{ResourceVersion: "0"})
	switch {
	case err != nil && at.IsZero():
		return nil, fmt.Errorf("list ServiceCIDRs, to which the pod sends by its node: %w", err)
	case err != nil:
		klog.FromContext(ctx).Error(err, "Cannot list ServiceCIDRs, takes the ones of before")
		return slices.Concat(s.given, listed), nil
	}
	listed = nil
	for i := range found.Items {
		listed = append(listed, overlay.ServicePrefixes(&found.Items[i])...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listed, s.at = listed, time.Now()
	return slices.Concat(s.given, listed), nil
}
