// SPDX-License-Identifier: Apache-2.0

// Package manifests has no code; its tests read what users apply.
package manifests

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/kubernetes/scheme"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

const kustomization = "kustomization.yaml"

// decode reads all documents of a YAML text strictly: a field that its type does
// not have is an error.
func decode(text []byte) ([]runtime.Object, error) {
	all := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, apiextensions.AddToScheme, v1alpha1.AddToScheme, admissionv1.AddToScheme, auditv1.AddToScheme} {
		if err := add(all); err != nil {
			return nil, err
		}
	}
	decoder := serializer.NewCodecFactory(all, serializer.EnableStrict).UniversalDeserializer()
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	var objects []runtime.Object
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		object, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			return nil, err
		}
		objects = append(objects, object)
	}
}

func yamlFiles(t *testing.T) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if path == "chart" {
			return fs.SkipDir // these files are made from it
		}
		if path == "monitoring/rules.yaml" || path == "monitoring/monitors.yaml" {
			return nil // of kinds of Prometheus' operator; test/scheduler/api applies them
		}
		if strings.HasSuffix(path, ".yaml") && filepath.Base(path) != kustomization {
			files = append(files, path)
		}
		return err
	})
	if err != nil || len(files) == 0 {
		t.Fatalf("found %d files: %v", len(files), err)
	}
	return files
}

// manifests yields each object of each file with the file's path.
func manifests(t *testing.T) iter.Seq2[string, runtime.Object] {
	t.Helper()
	return func(yield func(string, runtime.Object) bool) {
		for _, path := range yamlFiles(t) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			objects, err := decode(text)
			if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			for _, object := range objects {
				if !yield(path, object) {
					return
				}
			}
		}
	}
}

func TestManifestsDecodeStrictly(t *testing.T) {
	objects := 0
	for range manifests(t) {
		objects++
	}
	if objects == 0 {
		t.Error("found no objects")
	}
}

// A file that no kustomization names is not applied.
func TestKustomizationHasEveryFile(t *testing.T) {
	for _, path := range yamlFiles(t) {
		if strings.HasPrefix(path, "examples/") {
			continue
		}
		dir := filepath.Dir(path)
		// The right to read metrics is of use without the other objects there.
		if _, err := os.Stat(filepath.Join(dir, kustomization)); err != nil || path == "monitoring/rbac.yaml" {
			dir = "."
		}
		text, err := os.ReadFile(filepath.Join(dir, kustomization))
		if err != nil {
			t.Fatal(err)
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(text, []byte("- "+name+"\n")) {
			t.Errorf("%s of %s does not name %s", kustomization, dir, name)
		}
	}
}

// The role that kubectl berth tells a user to ask for is installed, also without Helm.
func TestViewerRoleIsInstalled(t *testing.T) {
	text, err := os.ReadFile(kustomization)
	if err != nil {
		t.Fatal(err)
	}
	for path, object := range manifests(t) {
		if role, ok := object.(*rbacv1.ClusterRole); ok && role.Name == failure.ViewerRole && bytes.Contains(text, []byte("- "+path+"\n")) {
			return
		}
	}
	t.Errorf("%s names no file with the ClusterRole %s", kustomization, failure.ViewerRole)
}

// docs/how-to/monitoring.md finds the programs by this label and this port; the kubelet's
// probes are answered there, too.
func TestProgramsAreServed(t *testing.T) {
	programs := 0
	for path, object := range manifests(t) {
		if strings.HasPrefix(path, "examples/") || path == "agent/cleanup/daemonset.yaml" {
			continue
		}
		var template corev1.PodTemplateSpec
		switch o := object.(type) {
		case *appsv1.Deployment:
			template = o.Spec.Template
		case *appsv1.DaemonSet:
			template = o.Spec.Template
		default:
			continue
		}
		programs++
		if template.Labels["app.kubernetes.io/part-of"] != "berth" {
			t.Errorf("%s: the pods lack the label app.kubernetes.io/part-of", path)
		}
		container := template.Spec.Containers[0]
		if len(container.Ports) != 1 || container.Ports[0].Name != "https" || !slices.Contains(container.Args, fmt.Sprintf("--secure-port=%d", container.Ports[0].ContainerPort)) {
			t.Errorf("%s: the one port is not named https, or not the port of --secure-port", path)
		}
		for _, probe := range []*corev1.Probe{container.LivenessProbe, container.ReadinessProbe} {
			if probe.HTTPGet.Port.StrVal != "https" || probe.HTTPGet.Scheme != corev1.URISchemeHTTPS || probe.HTTPGet.Host != "" {
				t.Errorf("%s: a probe asks %v", path, probe.HTTPGet)
			}
		}
	}
	if programs != 3 {
		t.Errorf("found %d programs, want 3", programs)
	}
}

// A drain must not take both replicas of a program at once, nor wait for ever.
func TestDisruptionBudgets(t *testing.T) {
	deployments := map[string]*appsv1.Deployment{}
	budgets := map[string]*policyv1.PodDisruptionBudget{}
	for _, object := range manifests(t) {
		switch o := object.(type) {
		case *appsv1.Deployment:
			if o.Labels["app.kubernetes.io/part-of"] == "berth" {
				deployments[o.Name] = o
			}
		case *policyv1.PodDisruptionBudget:
			budgets[o.Name] = o
		}
	}
	if len(deployments) != 2 || len(budgets) != len(deployments) {
		t.Errorf("%d Deployments and %d PodDisruptionBudgets, want 2 of each", len(deployments), len(budgets))
	}
	for name, deployment := range deployments {
		budget := budgets[name]
		if budget == nil {
			t.Errorf("no PodDisruptionBudget is called %s", name)
			continue
		}
		if budget.Namespace != deployment.Namespace || !reflect.DeepEqual(budget.Spec.Selector, deployment.Spec.Selector) {
			t.Errorf("PodDisruptionBudget %s selects other pods than the Deployment", name)
		}
		if most := budget.Spec.MaxUnavailable; most == nil || most.IntValue() < 1 || most.IntValue() >= int(*deployment.Spec.Replicas) {
			t.Errorf("PodDisruptionBudget %s: maxUnavailable is %v of %d", name, most, *deployment.Spec.Replicas)
		}
	}
}

// Least privilege, as the documentation promises it.
func TestPrivileges(t *testing.T) {
	for path, object := range manifests(t) {
		switch o := object.(type) {
		case *rbacv1.ClusterRole:
			checkRules(t, path, o.Rules)
		case *rbacv1.Role:
			checkRules(t, path, o.Rules)
		case *appsv1.Deployment:
			for _, container := range o.Spec.Template.Spec.Containers {
				c := container.SecurityContext
				if c == nil || c.Capabilities == nil || len(c.Capabilities.Add) > 0 || len(c.Capabilities.Drop) != 1 || c.Capabilities.Drop[0] != "ALL" {
					t.Errorf("%s: container %s does not drop all capabilities", path, container.Name)
				}
			}
			if s := o.Spec.Template.Spec.SecurityContext; s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot {
				t.Errorf("%s: runs as root", path)
			}
		case *appsv1.DaemonSet:
			for _, container := range o.Spec.Template.Spec.Containers {
				if c := container.SecurityContext; c == nil || c.Privileged != nil && *c.Privileged {
					t.Errorf("%s: container %s is privileged", path, container.Name)
				}
			}
		}
	}
}

func checkRules(t *testing.T, path string, rules []rbacv1.PolicyRule) {
	t.Helper()
	for _, rule := range rules {
		for _, list := range [][]string{rule.Verbs, rule.Resources, rule.APIGroups} {
			for _, entry := range list {
				// The controller fills in the authority of agents' certificates.
				if entry == "secrets" && path == "controller/rbac.yaml" && slices.Equal(rule.ResourceNames, []string{"berth-agent-ca"}) && slices.Equal(rule.Verbs, []string{"get", "update"}) {
					continue
				}
				if entry == "*" || entry == "secrets" || entry == "deletecollection" || entry == "escalate" || entry == "impersonate" {
					t.Errorf("%s grants %q", path, entry)
				}
			}
		}
	}
}

// The page on the agent names all that its container has of the node, and its capabilities.
func TestAgentsNeedsAreTold(t *testing.T) {
	page, err := os.ReadFile("../agent/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, needs, _ := strings.Cut(string(page), "\n## What the container needs\n")
	needs, _, _ = strings.Cut(needs, "\n## ")
	mounts := 0
	for path, object := range manifests(t) {
		set, ok := object.(*appsv1.DaemonSet)
		if !ok || path != "agent/daemonset.yaml" {
			continue
		}
		container := set.Spec.Template.Spec.Containers[0]
		for _, mount := range container.VolumeMounts {
			mounts++
			if !strings.Contains(needs, "`"+mount.MountPath+"`") {
				t.Errorf("agent/README.md does not say that the container needs %s", mount.MountPath)
			}
		}
		for _, capability := range container.SecurityContext.Capabilities.Add {
			if !strings.Contains(needs, "`"+string(capability)+"`") {
				t.Errorf("agent/README.md does not say that the container needs %s", capability)
			}
		}
	}
	if mounts < 5 {
		t.Errorf("found %d mounts only", mounts)
	}
}
