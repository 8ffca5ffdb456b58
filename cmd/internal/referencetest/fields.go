// SPDX-License-Identifier: Apache-2.0

package referencetest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// Fields describes a kind and its fields, as its CRD does.
func Fields(crd *apiextensions.CustomResourceDefinition) string {
	names, version := crd.Spec.Names, crd.Spec.Versions[0]
	scope := "namespaced"
	if crd.Spec.Scope == apiextensions.ClusterScoped {
		scope = "cluster-scoped"
	}
	schema := version.Schema.OpenAPIV3Schema
	var b strings.Builder
	b.WriteString(paragraph(schema.Description) + "\n\n")
	fmt.Fprintf(&b, "`%s/%s`, %s, `kubectl get %s`", crd.Spec.Group, version.Name, scope, names.Plural)
	for _, short := range names.ShortNames {
		fmt.Fprintf(&b, " or `%s`", short)
	}
	b.WriteString(".")
	if len(version.SelectableFields) > 0 {
		b.WriteString(" Field selectors:")
		for i, field := range version.SelectableFields {
			if i > 0 {
				b.WriteString(",")
			}
			fmt.Fprintf(&b, " `%s`", strings.TrimPrefix(field.JSONPath, "."))
		}
		b.WriteString(".")
	}
	b.WriteString("\n\n| field | type | meaning |\n|---|---|---|\n")
	for _, part := range []string{"spec", "status"} {
		properties := schema.Properties[part]
		fields(&b, part, &properties)
	}
	return b.String()
}

// fields adds a row for each field below an object.
func fields(b *strings.Builder, path string, object *apiextensions.JSONSchemaProps) {
	for _, name := range slices.Sorted(maps.Keys(object.Properties)) {
		field := object.Properties[name]
		inner, at := &field, path+"."+name
		if field.Items != nil {
			inner, at = field.Items.Schema, at+"[]"
		}
		kind := kindOf(&field)
		if slices.Contains(object.Required, name) {
			kind += ", required"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", path+"."+name, kind, meaning(name, field.Description)+bounds(&field))
		if known(inner) == "" {
			fields(b, at, inner)
		}
	}
}

// known returns the name of Kubernetes' own types, whose fields are not Berth's to explain.
func known(schema *apiextensions.JSONSchemaProps) string {
	if _, ok := schema.Properties["matchExpressions"]; ok {
		return "label selector"
	}
	if _, ok := schema.Properties["lastTransitionTime"]; ok {
		return "condition"
	}
	return ""
}

func kindOf(schema *apiextensions.JSONSchemaProps) string {
	switch {
	case schema.XIntOrString:
		return "quantity"
	case schema.Items != nil:
		return "list of " + kindOf(schema.Items.Schema) + "s"
	case schema.AdditionalProperties != nil:
		return "map"
	}
	if schema.Format == "date-time" {
		return "time"
	}
	return cmp.Or(known(schema), schema.Type)
}

// bounds returns the rules that a value must keep, as far as they are no expressions.
func bounds(schema *apiextensions.JSONSchemaProps) string {
	var rules []string
	if schema.Default != nil {
		rules = append(rules, "default `"+strings.Trim(string(schema.Default.Raw), `"`)+"`")
	}
	values := schema.Enum
	if schema.Items != nil {
		values = schema.Items.Schema.Enum
	}
	if len(values) > 0 {
		var names []string
		for _, value := range values {
			names = append(names, "`"+strings.Trim(string(value.Raw), `"`)+"`")
		}
		rules = append(rules, strings.Join(names, ", "))
	}
	switch {
	case schema.Minimum != nil && schema.Maximum != nil:
		rules = append(rules, fmt.Sprintf("%g to %g", *schema.Minimum, *schema.Maximum))
	case schema.Minimum != nil:
		rules = append(rules, fmt.Sprintf("at least %g", *schema.Minimum))
	case schema.Maximum != nil:
		rules = append(rules, fmt.Sprintf("at most %g", *schema.Maximum))
	}
	if schema.MaxItems != nil {
		rules = append(rules, fmt.Sprintf("at most %d of them", *schema.MaxItems))
	}
	for _, rule := range schema.XValidations {
		if strings.Contains(rule.Rule, "oldSelf") {
			rules = append(rules, "immutable")
		}
	}
	if len(rules) == 0 {
		return ""
	}
	return " *" + strings.Join(rules, "; ") + "*"
}

// meaning returns a description in one line, without the field's name at its beginning where the
// rest is a definition: "vlan is the 802.1Q tag" becomes "The 802.1Q tag".
func meaning(name, description string) string {
	line := paragraph(description)
	for _, verb := range []string{" is the ", " are the "} {
		if rest, ok := strings.CutPrefix(line, name+verb); ok {
			return "The " + rest
		}
	}
	return line
}

// paragraph returns a description in one line.
func paragraph(description string) string {
	return text(strings.Join(strings.Fields(description), " "))
}
