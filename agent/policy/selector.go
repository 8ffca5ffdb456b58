// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// selector is a label selector with its text: selectors that have the same requirements, in labels
// or in expressions, have the same text. The zero selector matches everything.
type selector struct {
	parsed labels.Selector
	text   string
}

func selectorOf(written *metav1.LabelSelector) (selector, error) {
	all := metav1.LabelSelector{MatchExpressions: slices.Clone(written.MatchExpressions)}
	for _, key := range slices.Sorted(maps.Keys(written.MatchLabels)) {
		all.MatchExpressions = append(all.MatchExpressions, metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpIn, Values: []string{written.MatchLabels[key]}})
	}
	parsed, err := metav1.LabelSelectorAsSelector(&all)
	if err != nil {
		return selector{}, fmt.Errorf("parse label selector: %w", err)
	}
	return selector{parsed, parsed.String()}, nil
}

func (s selector) matches(of map[string]string) bool {
	return s.text == "" || s.parsed.Matches(labels.Set(of))
}

// anchor returns a key and values such that every match has a label with this key and one of the
// values; false if there are none.
func (s selector) anchor() (key string, values []string, ok bool) {
	if s.text == "" {
		return "", nil, false
	}
	requirements, _ := s.parsed.Requirements()
	for i := range requirements {
		if r := &requirements[i]; r.Operator() == selection.In && (!ok || len(r.ValuesUnsorted()) < len(values)) {
			key, values, ok = r.Key(), r.ValuesUnsorted(), true
		}
	}
	return key, values, ok
}

// scope selects namespaces: a single namespace, or all namespaces with certain labels.
type scope struct {
	// namespace is empty if the selector selects the namespaces.
	namespace string
	selector  selector
}

func (s scope) key() string {
	if s.namespace != "" {
		return "namespace " + s.namespace
	}
	return "namespaces " + s.selector.text
}

// matches reports whether the scope has a namespace. The labels of an unknown namespace are not
// known: only a selector without requirements matches it.
func (s scope) matches(name string, labels map[string]string, known bool) bool {
	if s.namespace != "" || name == NodeNamespace {
		return s.namespace == name
	}
	if !known {
		return s.selector.text == ""
	}
	return s.selector.matches(labels)
}

type podSelection struct {
	scope scope
	pods  selector
}

func (p podSelection) key() string { return p.scope.key() + "|" + p.pods.text }

var everyPod podSelection
