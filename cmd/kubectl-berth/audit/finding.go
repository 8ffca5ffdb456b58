// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

type Finding struct {
	Code Code `json:"code"`
	// Address is set if the finding is about one address.
	Address string `json:"address,omitempty"`
	Text    string `json:"text"`
	// Objects are the objects that it follows from, the most important first.
	Objects []Object `json:"objects"`
	// Command shows more, or fixes it.
	Command string `json:"command"`

	// key is equal for two findings that follow from the same state of the same objects.
	key string
}

type Object struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
	// ResourceVersion is set for FloatingIPs: an action on one can be limited to this state.
	ResourceVersion string `json:"resourceVersion,omitempty"`
}

// String returns the object as kubectl's -o name would write it, without the group.
func (o Object) String() string {
	text := strings.ToLower(o.Kind) + "/" + o.Name
	if o.Namespace != "" {
		text += " in " + o.Namespace
	}
	return text
}

// Doubts says which findings are looked at again, and how long.
func Doubts(suspects []Finding, left time.Duration) string {
	text := fmt.Sprintf("%s %s", suspects[0].Code, suspects[0].Text)
	if n := len(suspects) - 1; n > 0 {
		text += fmt.Sprintf(", and %d more", n)
	}
	return fmt.Sprintf("looking again, for up to %s, whether it passes: %s", max(left, 0).Round(time.Second), text)
}

func sorted(findings []Finding) []Finding {
	slices.SortFunc(findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Code, b.Code), cmp.Compare(a.Address, b.Address), cmp.Compare(a.Text, b.Text))
	})
	return findings
}

// Code names a kind of finding. Codes are stable: scripts and alerts may name them.
type Code string

// B1 is about addresses, B2 pods, B3 pools, B4 nodes, B5 the wire, B6 the installation.
const (
	PodGone      Code = "B101"
	OwnerGone    Code = "B102"
	RestOverdue  Code = "B103"
	WrongNode    Code = "B104"
	Undetached   Code = "B105"
	PoolGone     Code = "B106"
	OutsidePool  Code = "B107"
	NodeGone     Code = "B108"
	NodeOutside  Code = "B109"
	InConflict   Code = "B110"
	OwnerUnknown Code = "B111"
	Outdated     Code = "B112"

	NotRecorded Code = "B201"
	TwoPods     Code = "B202"
	OtherPodIPs Code = "B203"
	TooFew      Code = "B204"

	PoolInvalid  Code = "B301"
	PoolsOverlap Code = "B302"
	StaleStatus  Code = "B303"
	PoolNoNode   Code = "B304"

	NoAgent       Code = "B401"
	AgentNotReady Code = "B402"

	NoAnswer    Code = "B501"
	OtherMAC    Code = "B502"
	SeveralMACs Code = "B503"
	NotHeard    Code = "B504"

	PolicyMissing Code = "B601"
	PolicyUnbound Code = "B602"
)

var Meanings = map[Code]string{
	PodGone:       "the pod that has the address is gone or finished, and the address was not released",
	OwnerGone:     "the address is kept, and its owner is gone or does not keep it any more",
	RestOverdue:   "the cooldown of the address is over, and it was not freed",
	WrongNode:     "the FloatingIP names another node than its pod is on",
	Undetached:    "no pod has the address, and the external assigner has not detached it",
	PoolGone:      "the pool of the address is gone, and no other has the address",
	OutsidePool:   "the address is outside of the ranges of its pool",
	NodeGone:      "the node of the address does not exist",
	NodeOutside:   "the pool of the address does not serve the node that the address is on",
	InConflict:    "a host outside of the cluster has the address",
	OwnerUnknown:  "the owner of the address cannot be read, so the address is kept",
	Outdated:      "the record of the address is out of date",
	NotRecorded:   "a pod runs with an address that is not recorded for it",
	TwoPods:       "two pods have the same address",
	OtherPodIPs:   "the IPs of a pod are not the addresses that are recorded for it",
	TooFew:        "a pod is bound, and fewer addresses are recorded for it than it requests",
	PoolInvalid:   "the pool cannot be used as it is written",
	PoolsOverlap:  "the pool lists addresses that an older pool has",
	StaleStatus:   "the status of the pool does not match its addresses",
	PoolNoNode:    "no node of the cluster is one of the pool's",
	NoAgent:       "there are addresses on a node without an agent",
	AgentNotReady: "there are addresses on a node whose agent is not Ready",
	NoAnswer:      "nobody answers for the address on the network",
	OtherMAC:      "somebody else answers for the address on the network",
	SeveralMACs:   "several answer for the address on the network",
	NotHeard:      "the agents of two nodes do not hear each other on the network of a pool",
	PolicyMissing: "an admission policy of Berth is missing",
	PolicyUnbound: "an admission policy of Berth denies nothing",
}

type AdmissionPolicy struct {
	Name string `json:"name"`
	// Bound says that the policy is there, and a binding that has it deny.
	Bound bool `json:"bound"`
}

// admissionPolicies are in every installation.
var admissionPolicies = []string{
	"agents-of-certificates.berth.dev", "agents-of-events.berth.dev", "agents-of-floatingips.berth.dev", "agents-of-nodeassignments.berth.dev",
	"diagnosis-tokens.berth.dev", "diagnosis.berth.dev", "held-addresses.berth.dev", "host-ports-value.berth.dev", "host-ports.berth.dev", "in-use.berth.dev", "ippools.berth.dev", "nodeassignments.berth.dev", "operators.berth.dev",
	"pools-addresses.berth.dev", "took-over.berth.dev",
}

// AdmissionPolicies returns Berth's admission policies, and a finding for each that is not in
// force: tenants and nodes may then do what it forbids. Blocking.
func AdmissionPolicies(ctx context.Context, kube kubernetes.Interface) ([]AdmissionPolicy, []Finding, error) {
	have, err := kube.AdmissionregistrationV1().ValidatingAdmissionPolicies().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("list ValidatingAdmissionPolicies: %w", err)
	}
	bindings, err := kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("list ValidatingAdmissionPolicyBindings: %w", err)
	}
	there, denied := map[string]bool{}, map[string]bool{}
	for i := range have.Items {
		there[have.Items[i].Name] = true
	}
	for i := range bindings.Items {
		if spec := &bindings.Items[i].Spec; slices.Contains(spec.ValidationActions, admissionregistrationv1.Deny) {
			denied[spec.PolicyName] = true
		}
	}
	all, found := make([]AdmissionPolicy, 0, len(admissionPolicies)), []Finding(nil)
	for _, name := range admissionPolicies {
		all = append(all, AdmissionPolicy{Name: name, Bound: there[name] && denied[name]})
		f := Finding{Objects: []Object{{Kind: "ValidatingAdmissionPolicy", Name: name}}, Command: "kubectl get validatingadmissionpolicies,validatingadmissionpolicybindings"}
		switch {
		case !there[name]:
			f.Code, f.Text = PolicyMissing, fmt.Sprintf("the ValidatingAdmissionPolicy %s is missing, so that what it forbids is allowed: install Berth's chart again", name)
		case !denied[name]:
			f.Code, f.Text = PolicyUnbound, fmt.Sprintf("the ValidatingAdmissionPolicy %s has no binding that denies, so that what it forbids is allowed: install Berth's chart again", name)
		default:
			continue
		}
		found = append(found, f)
	}
	return all, found, nil
}

// AddAdmission adds to a report whether Berth's admission policies are in force. Blocking.
func (a *Auditor) AddAdmission(ctx context.Context, report *Report) {
	_, found, err := AdmissionPolicies(ctx, a.clients.Kube)
	if err != nil {
		report.Unknown = append(report.Unknown, fmt.Sprintf("whether Berth's admission policies are in force: %v", err))
	}
	report.Findings = sorted(append(report.Findings, found...))
}
