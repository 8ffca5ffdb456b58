// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/selection"
)

// selector is a label selector in a normal form: selectors that are written differently and
// mean the same requirements are equal, and so is their text. The zero selector has none and matches everything.
type selector struct {
	requirements []requirement
	text         string
}

type requirement struct {
	key      string
	operator selection.Operator
	values   []string
}

// selectorOf returns the normal form of a selector as the API has it.
func selectorOf(written *metav1.LabelSelector) (selector, error) {
	parsed, err := metav1.LabelSelectorAsSelector(written)
	if err != nil {
		return selector{}, fmt.Errorf("parse label selector: %w", err)
	}
	given, _ := parsed.Requirements()
	var s selector
	for _, r := range given {
		values := slices.Compact(slices.Sorted(slices.Values(r.ValuesUnsorted())))
		operator := r.Operator()
		if operator == selection.Equals {
			operator = selection.In
		}
		s.requirements = append(s.requirements, requirement{r.Key(), operator, values})
	}
	order := func(a, b requirement) int {
		return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.operator, b.operator), slices.Compare(a.values, b.values))
	}
	slices.SortFunc(s.requirements, order)
	s.requirements = slices.CompactFunc(s.requirements, func(a, b requirement) bool { return order(a, b) == 0 })
	var text strings.Builder
	for i, r := range s.requirements {
		if i > 0 {
			text.WriteByte(';')
		}
		// Neither keys nor values have these separators.
		fmt.Fprintf(&text, "%s %s %s", r.key, r.operator, strings.Join(r.values, ","))
	}
	s.text = text.String()
	return s, nil
}

func (s selector) matches(labels map[string]string) bool {
	for _, r := range s.requirements {
		value, has := labels[r.key]
		ok := false
		switch r.operator {
		case selection.In:
			ok = has && slices.Contains(r.values, value)
		case selection.NotIn:
			ok = !has || !slices.Contains(r.values, value)
		case selection.Exists:
			ok = has
		case selection.DoesNotExist:
			ok = !has
		}
		if !ok {
			return false
		}
	}
	return true
}

// anchor returns labels of which every match has one; false if there are none such.
func (s selector) anchor() (key string, values []string, ok bool) {
	for _, r := range s.requirements {
		if r.operator == selection.In && (!ok || len(r.values) < len(values)) {
			key, values, ok = r.key, r.values, true
		}
	}
	return key, values, ok
}

// scope says in which namespaces pods are selected: in one, or in all with certain labels.
type scope struct {
	// namespace is empty where the selector says which.
	namespace string
	selector  selector
}

func (s scope) key() string {
	if s.namespace != "" {
		return "namespace " + s.namespace
	}
	return "namespaces " + s.selector.text
}

// matches says whether the scope has a namespace. Of a namespace that is not known, its labels
// are not: only a selector without requirements matches.
func (s scope) matches(name string, labels map[string]string, known bool) bool {
	if s.namespace != "" || name == NodeNamespace {
		return s.namespace == name
	}
	if !known {
		return len(s.selector.requirements) == 0
	}
	return s.selector.matches(labels)
}

// podSelection selects the pods with certain labels in certain namespaces.
type podSelection struct {
	scope scope
	pods  selector
}

func (p podSelection) key() string { return p.scope.key() + "|" + p.pods.text }

// everyPod is the selection of all pods of the cluster.
var everyPod podSelection
