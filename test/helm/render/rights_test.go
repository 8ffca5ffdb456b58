// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const securityPage = "../../../docs/explanation/security.md"

// The page has each right that the chart gives, with any of its sets of values, and each role of
// the examples. It has no other one, and none twice. So a new right is told where users look for
// it, with what limits it.
func TestRightsAreOnThePage(t *testing.T) {
	roles, bindings := given(t)
	text, err := os.ReadFile(securityPage)
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]bool{}
	once := func(right string) {
		if told[right] {
			t.Errorf("the page has twice: %s", right)
		}
		told[right] = true
	}
	for _, row := range tableOf(t, string(text), "role", "resources", "verbs") {
		for _, resource := range spans(row[1]) {
			for verb := range strings.SplitSeq(row[2], ",") {
				once(right(code(row[0]), strings.TrimSpace(verb), resource))
			}
		}
	}
	for _, row := range tableOf(t, string(text), "ServiceAccount", "roles") {
		for _, role := range spans(row[1]) {
			once(bound(code(row[0]), role))
		}
	}
	maps.Copy(roles, bindings)
	for right := range roles {
		if !told[right] {
			t.Errorf("the page lacks: %s", right)
		}
	}
	for right := range told {
		if !roles[right] {
			t.Errorf("the chart does not give what the page has: %s", right)
		}
	}
	if len(bindings) < 15 || len(roles) < 150 {
		t.Errorf("found %d bindings, %d rights", len(bindings), len(roles))
	}
}

func right(role, verb, resource string) string {
	return fmt.Sprintf("%s may %s %s", role, verb, resource)
}

func bound(account, role string) string { return fmt.Sprintf("%s has %s", account, role) }

// given returns the rights of all roles, and who has which role.
func given(t *testing.T) (rights, bindings map[string]bool) {
	t.Helper()
	rights, bindings = map[string]bool{}, map[string]bool{}
	for _, text := range objects(t) {
		if !strings.Contains(text, "apiVersion: rbac.authorization.k8s.io/") {
			continue
		}
		var kind struct {
			metav1.TypeMeta   `json:",inline"`
			metav1.ObjectMeta `json:"metadata"`
			Rules             []rbacv1.PolicyRule `json:"rules"`
			RoleRef           rbacv1.RoleRef      `json:"roleRef"`
			Subjects          []rbacv1.Subject    `json:"subjects"`
		}
		if err := yaml.Unmarshal([]byte(text), &kind); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		switch kind.Kind {
		case "Role", "ClusterRole":
			for _, rule := range kind.Rules {
				for _, verb := range rule.Verbs {
					for _, resource := range resources(rule) {
						rights[right(name(kind.Kind, kind.Namespace, kind.Name), verb, resource)] = true
					}
				}
			}
		case "RoleBinding", "ClusterRoleBinding":
			for _, subject := range kind.Subjects {
				if subject.Kind != rbacv1.ServiceAccountKind {
					t.Errorf("%s %s is for a %s", kind.Kind, kind.Name, subject.Kind)
				}
				role := name(kind.RoleRef.Kind, kind.Namespace, kind.RoleRef.Name)
				if kind.Kind == "RoleBinding" && kind.RoleRef.Kind == "ClusterRole" {
					role += " in " + kind.Namespace
				}
				bindings[bound(subject.Name, role)] = true
			}
		}
	}
	return rights, bindings
}

// objects returns the texts of all objects that the chart makes, by its defaults and each set of
// values in its folder ci, and of the examples.
func objects(t *testing.T) (texts []string) {
	t.Helper()
	c, err := open(filepath.Join(manifests, "chart"))
	if err != nil {
		t.Fatal(err)
	}
	sets, err := filepath.Glob(filepath.Join(manifests, "chart/ci/*.yaml"))
	if err != nil || len(sets) < 8 {
		t.Fatalf("%d sets of values, %v", len(sets), err)
	}
	for _, set := range append(sets, "") {
		values, err := readValues(set)
		if err != nil {
			t.Fatal(err)
		}
		files, err := render(c, namespace, values)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			texts = append(texts, strings.Split(file, "\n---\n")...)
		}
	}
	examples, err := filepath.Glob(filepath.Join(manifests, "examples/*.yaml"))
	if err != nil || len(examples) < 5 {
		t.Fatalf("%d examples, %v", len(examples), err)
	}
	for _, example := range examples {
		text, err := os.ReadFile(example)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, strings.Split(string(text), "\n---\n")...)
	}
	return texts
}

// name is that of a role on the page: a Role has its namespace before it.
func name(kind, namespace, name string) string {
	if kind == "Role" {
		return namespace + "/" + name
	}
	return name
}

// resources are those of a rule, as RESOURCE.GROUP/SUBRESOURCE NAME, or paths.
func resources(rule rbacv1.PolicyRule) []string {
	all := slices.Clone(rule.NonResourceURLs)
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			kind, sub, has := strings.Cut(resource, "/")
			if group != "" {
				kind += "." + group
			}
			if has {
				kind += "/" + sub
			}
			if len(rule.ResourceNames) == 0 {
				all = append(all, kind)
			}
			for _, name := range rule.ResourceNames {
				all = append(all, kind+" "+name)
			}
		}
	}
	return all
}

// tableOf returns the rows of all tables of a page whose head begins with these columns. An empty
// first cell is the one above.
func tableOf(t *testing.T, page string, columns ...string) (rows [][]string) {
	t.Helper()
	in := false
	for line := range strings.Lines(page) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case !strings.HasPrefix(line, "|"):
			in = false
		case len(cells) >= len(columns) && slices.Equal(cells[:len(columns)], columns):
			in = true
		case in && !strings.HasPrefix(line, "|-"):
			if cells[0] == "" && len(rows) > 0 {
				cells[0] = rows[len(rows)-1][0]
			}
			rows = append(rows, cells)
		}
	}
	if len(rows) == 0 {
		t.Fatalf("the page has no table with the columns %q", columns)
	}
	return rows
}

// spans are the spans of code of a cell.
func spans(cell string) (all []string) {
	for i, part := range strings.Split(cell, "`") {
		if i%2 == 1 {
			all = append(all, part)
		}
	}
	return all
}

// code is the first span of code of a cell, or what the cell has in its place.
func code(cell string) string {
	if all := spans(cell); len(all) > 0 {
		return all[0]
	}
	return cell
}
