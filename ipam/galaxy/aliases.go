// SPDX-License-Identifier: Apache-2.0

package galaxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/iprange"
)

// The resource and annotations of Galaxy on a pod.
const (
	// ResourceENIIP is the extended resource of Galaxy that asks for addresses. Galaxy ignores its
	// quantity; Berth uses it.
	ResourceENIIP = "tke.cloud.tencent.com/eni-ip"
	// AnnotationReleasePolicy is "immutable" or "never"; anything else frees the
	// address with the pod.
	AnnotationReleasePolicy = "k8s.v1.cni.galaxy.io/release-policy"
	// AnnotationPool names the Pool that the pod's address belongs to, regardless of the
	// release policy.
	AnnotationPool = "tke.cloud.tencent.com/eni-ip-pool"
	// AnnotationArgs is JSON: the user writes "request_ip_range", Galaxy writes the
	// assigned addresses into "common.ipinfos".
	AnnotationArgs = "k8s.v1.cni.galaxy.io/args"
	// AnnotationPortMapping, with any value, asks for host ports that the node chooses. The node's
	// result is written into the same annotation: a JSON list of [PortMapping].
	AnnotationPortMapping = v1alpha1.AnnotationPortMapping
)

// Aliases translates a pod's Galaxy annotations into Berth's annotations release-policy, claim and
// addresses. It sets only those for which the pod has Galaxy's annotation. Berth's own annotations
// on the pod must take precedence: the caller does this. annotations is not modified.
//
// A pod of a Galaxy pool gets berth.dev/claim and no release policy, because the claim
// sets the policy. The number of addresses is the requested quantity; with Galaxy it
// followed from request_ip_range.
//
// It returns an error for invalid annotations. It ignores the addresses that Galaxy
// wrote itself (common.ipinfos).
func Aliases(annotations map[string]string) (ours map[string]string, err error) {
	ours = map[string]string{}
	var errs []error
	policy, hasPolicy := annotations[AnnotationReleasePolicy]
	if pool := annotations[AnnotationPool]; pool != "" {
		if err := CheckClaimName(pool); err != nil {
			errs = append(errs, fmt.Errorf("annotation %s: %w", AnnotationPool, err))
		}
		ours[v1alpha1.AnnotationClaim] = pool
	} else if hasPolicy {
		ours[v1alpha1.AnnotationReleasePolicy] = string(PolicyNamed(policy))
	}
	if args := annotations[AnnotationArgs]; args != "" {
		addresses, err := requestedAddresses(args)
		if err != nil {
			errs = append(errs, fmt.Errorf("annotation %s: %w", AnnotationArgs, err))
		}
		if addresses != "" {
			ours[v1alpha1.AnnotationAddresses] = addresses
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return ours, nil
}

// PolicyNamed returns the policy that Galaxy reads from its release-policy annotation.
func PolicyNamed(text string) v1alpha1.ReleasePolicy {
	switch text {
	case "immutable":
		return v1alpha1.ReleaseRetain
	case "never":
		return v1alpha1.ReleaseNever
	}
	return v1alpha1.ReleasePodDeleted
}

// CheckClaimName returns an error if a Galaxy pool's name cannot be the name of an
// IPClaim. Galaxy accepts any text, even names that break its own keys.
func CheckClaimName(pool string) error {
	if problems := validation.IsDNS1123Subdomain(pool); len(problems) > 0 {
		return fmt.Errorf("%q cannot be the name of an IPClaim: %s", pool, strings.Join(problems, "; "))
	}
	return nil
}

// args is the part of the args annotation that Berth reads.
type args struct {
	RequestIPRange [][]string `json:"request_ip_range"`
	Common         struct {
		IPInfos []struct {
			IP string `json:"ip"`
		} `json:"ipinfos"`
	} `json:"common"`
}

// requestedAddresses translates request_ip_range to berth.dev/addresses; "" if there is
// none.
func requestedAddresses(text string) (string, error) {
	var parsed args
	if err := json.Unmarshal([]byte(text), &parsed); err != nil {
		return "", fmt.Errorf("parse as JSON: %w", err)
	}
	var lists []string
	for i, group := range parsed.RequestIPRange {
		if len(group) == 0 {
			return "", fmt.Errorf("request_ip_range[%d] is empty: list the addresses, or remove it", i)
		}
		var list []string
		for j, text := range group {
			r, err := parseRange(text)
			if err != nil {
				return "", fmt.Errorf("request_ip_range[%d][%d]: %w", i, j, err)
			}
			list = append(list, r.String())
		}
		lists = append(lists, strings.Join(list, ","))
	}
	return strings.Join(lists, ";"), nil
}

// AssignedAddresses returns the addresses that Galaxy wrote into a pod's args
// annotation when it bound the pod; nil if it wrote none. Any user that may change the
// pod can change them.
func AssignedAddresses(annotations map[string]string) ([]netip.Addr, error) {
	text := annotations[AnnotationArgs]
	if text == "" {
		return nil, nil
	}
	var parsed args
	if err := json.Unmarshal([]byte(text), &parsed); err != nil {
		return nil, fmt.Errorf("annotation %s: parse as JSON: %w", AnnotationArgs, err)
	}
	var addresses []netip.Addr
	for i, info := range parsed.Common.IPInfos {
		text, _, _ := strings.Cut(info.IP, "/")
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("annotation %s: common.ipinfos[%d]: %q is not an address", AnnotationArgs, i, info.IP)
		}
		addresses = append(addresses, addr)
	}
	return addresses, nil
}

// parseRange reads "first~last" or one address.
func parseRange(text string) (iprange.Range, error) {
	from, to, isRange := strings.Cut(text, "~")
	first, err := parseAddr(from)
	if err != nil {
		return iprange.Range{}, fmt.Errorf("%q: %w", text, err)
	}
	if !isRange {
		return iprange.Single(first), nil
	}
	last, err := parseAddr(to)
	if err != nil {
		return iprange.Range{}, fmt.Errorf("%q: %w", text, err)
	}
	if first.BitLen() != last.BitLen() {
		return iprange.Range{}, fmt.Errorf("%q mixes IPv4 and IPv6", text)
	}
	if last.Less(first) {
		return iprange.Range{}, fmt.Errorf("%q is backwards: write %s~%s", text, last, first)
	}
	return iprange.Range{First: first, Last: last}, nil
}

func parseAddr(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(strings.TrimSpace(text))
	if err != nil || addr.Zone() != "" || addr.Is4In6() {
		return netip.Addr{}, fmt.Errorf("%q is not a plain IP address", text)
	}
	return addr, nil
}

// PortMapping is a host port in the annotation [AnnotationPortMapping].
type PortMapping struct {
	HostPort      int32  `json:"hostPort"`
	ContainerPort int32  `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP,omitempty"`
	PodName       string `json:"podName"`
	PodIP         string `json:"podIP"`
}
