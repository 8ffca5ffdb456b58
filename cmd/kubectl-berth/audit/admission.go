// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"context"
	"fmt"
	"slices"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// AdmissionPolicy is a ValidatingAdmissionPolicy of Berth.
type AdmissionPolicy struct {
	Name string `json:"name"`
	// Bound says that the policy is there, and a binding that has it deny.
	Bound bool `json:"bound"`
}

// admissionPolicies are in every installation.
var admissionPolicies = []string{
	"agents-of-certificates.berth.dev", "agents-of-events.berth.dev", "agents-of-floatingips.berth.dev", "agents-of-nodeassignments.berth.dev",
	"diagnosis-tokens.berth.dev", "diagnosis.berth.dev", "held-addresses.berth.dev", "host-ports-value.berth.dev", "host-ports.berth.dev", "in-use.berth.dev", "ippools.berth.dev", "nodeassignments.berth.dev", "operators.berth.dev",
	"pools-addresses.berth.dev",
}

// AdmissionPolicies returns Berth's admission policies, and a finding for each that is not in force: tenants and
// nodes may then do what it forbids. Blocking.
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
