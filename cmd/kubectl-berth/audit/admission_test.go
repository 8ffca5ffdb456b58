// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-dev/berth/ipam/reclaim"
)

// The admission policies are those of the manifests, but for one that only warns.
func TestAdmissionPolicies(t *testing.T) {
	files, err := filepath.Glob("../../../manifests/admission/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("there are no admission policies: %v", err)
	}
	var names []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "validationActions: [Warn]") {
			continue
		}
		for _, match := range regexp.MustCompile(`(?m)^kind: ValidatingAdmissionPolicy\nmetadata:\n  name: (\S+)`).FindAllSubmatch(text, -1) {
			names = append(names, string(match[1]))
		}
	}
	slices.Sort(names)
	if diff := cmp.Diff(names, admissionPolicies); diff != "" {
		t.Errorf("the admission policies (-manifests +audit):\n%s", diff)
	}
}

// A policy that is missing, and one whose binding only warns, are found; who may not read them does
// not know.
func TestAddAdmission(t *testing.T) {
	var objects []runtime.Object
	for _, name := range admissionPolicies[1:] {
		actions := []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}
		if name == "operators.berth.dev" {
			actions[0] = admissionregistrationv1.Warn
		}
		objects = append(objects, &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "of-" + name}, Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name, ValidationActions: actions},
		})
	}
	kube := fake.NewClientset(objects...)
	report := &Report{Findings: []Finding{{Code: NoAgent}}}
	auditor := New(reclaim.Clients{Kube: kube}, Options{})
	auditor.AddAdmission(t.Context(), report)
	var codes []Code
	for _, f := range report.Findings {
		codes = append(codes, f.Code)
	}
	if diff := cmp.Diff([]Code{NoAgent, PolicyMissing, PolicyUnbound}, codes); diff != "" || len(report.Unknown) > 0 || report.Findings[1].Objects[0].Name != admissionPolicies[0] || report.Findings[2].Objects[0].Name != "operators.berth.dev" {
		t.Errorf("%+v (-want +got):\n%s", report, diff)
	}
	kube.PrependReactor("list", "validatingadmissionpolicies", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, errors.New("no right")
	})
	report = &Report{}
	auditor.AddAdmission(t.Context(), report)
	if len(report.Findings) > 0 || len(report.Unknown) != 1 || !strings.Contains(report.Unknown[0], "no right") {
		t.Errorf("%+v", report)
	}
}
