// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/policy/enforce"
	"github.com/berth-dev/berth/agent/policy/iptables"
	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/test/deploy"
)

// throughIPTables returns whether agents enforce policies through ipset and iptables. Without the
// variable they choose nftables: no kubelet has chains in the namespaces of the tests.
func throughIPTables() bool {
	return os.Getenv(deploy.EnvPolicyBackend) == string(enforce.BackendIPTables)
}

// rules is the node's ruleset as text, without what counts.
func rules(t *testing.T, h *netnstest.Host) string {
	t.Helper()
	return printed(t, h, "nft", "--stateless", "list", "ruleset") + printed(t, h, "ipset", "save")
}

// printed is the output of a program.
func printed(t *testing.T, h *netnstest.Host, name string, args ...string) string {
	t.Helper()
	text, err := h.Command(name, args...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, text)
	}
	return text
}

// savedLines are the chains of policies of both families, and all sets.
func savedLines(t *testing.T, h *netnstest.Host) []string {
	t.Helper()
	var all string
	// The save program makes a table that is not there.
	for family, program := range map[string]string{"ip": "iptables-nft-save", "ip6": "ip6tables-nft-save"} {
		if strings.Contains(printed(t, h, "nft", "list", "tables"), "table "+family+" "+iptables.TableName) {
			all += printed(t, h, program, "-t", iptables.TableName)
		}
	}
	return strings.Split(all+printed(t, h, "ipset", "save"), "\n")
}

// judges returns whether the rules of policyText lead the packets of a pod's address to a chain.
func judges(text, address string) bool {
	if throughIPTables() {
		return strings.Contains(text+"\n", " "+address+"\n")
	}
	return strings.Contains(text, " "+address+" : goto")
}

// setName is the name of a set in a line.
var setName = regexp.MustCompile(`\b` + iptables.SetPrefix + `\S+`)

// savedIn is policyParts of ipset and iptables. In place of the name of a set, which ends in the
// generation of an agent, a rule has the set's elements.
func savedIn(t *testing.T, h *netnstest.Host) []string {
	t.Helper()
	elements := map[string][]string{}
	var lines []string
	for _, line := range savedLines(t, h) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0 || strings.HasPrefix(line, "#"):
		case fields[0] == "create":
			elements[fields[1]] = append(elements[fields[1]], fields[2])
		case fields[0] == "add":
			elements[fields[1]] = append(elements[fields[1]], strings.Join(fields[2:], " "))
		default:
			lines = append(lines, line)
		}
	}
	used := map[string]bool{}
	for i, line := range lines {
		lines[i] = setName.ReplaceAllStringFunc(line, func(name string) string {
			used[name] = true
			slices.Sort(elements[name])
			return "{" + strings.Join(elements[name], ", ") + "}"
		})
	}
	for name := range elements {
		if !used[name] {
			lines = append(lines, "a set without a rule: "+name)
		}
	}
	// The rules of a chain have an order, and chains have none.
	chains := map[string][]string{}
	var all []string
	for _, line := range lines {
		if chain, ok := strings.CutPrefix(line, "-A "); ok {
			chain, _, _ = strings.Cut(chain, " ")
			chains[chain] = append(chains[chain], line)
			continue
		}
		all = append(all, line)
	}
	for _, rules := range chains {
		all = append(all, strings.Join(rules, "\n"))
	}
	slices.Sort(all)
	return all
}

// round is the ending of names in a table that was replaced.
var round = regexp.MustCompile(`\.[0-9]{1,6}$`)

// identity is the beginning of a rule's comment, which follows from the names in the rule.
var identity = regexp.MustCompile(`^berth [0-9a-f]{8}: `)

// policyParts are the rules of policies of a host without names and numbers that differ between
// agents of the same objects, and in an order that says nothing.
func policyParts(t *testing.T, h *netnstest.Host) []string {
	t.Helper()
	if throughIPTables() {
		return savedIn(t, h)
	}
	return tableIn(t, h)
}

// tableIn is policyParts of nftables.
func tableIn(t *testing.T, h *netnstest.Host) []string {
	t.Helper()
	text, err := h.Command("nft", "--json", "list", "table", "inet", ruleset.TableName)
	if err != nil {
		return []string{err.Error()}
	}
	var listed struct{ Nftables []map[string]map[string]any }
	if err := json.Unmarshal([]byte(text), &listed); err != nil {
		t.Fatal(err)
	}
	chains := map[string][]string{}
	var all []string
	for _, object := range listed.Nftables {
		for kind, fields := range object {
			if kind == "metainfo" {
				continue
			}
			raw, err := json.Marshal(plain(fields))
			if err != nil {
				t.Fatal(err)
			}
			if kind == "rule" {
				// Rules have an order within their chain.
				chain, _ := plain(fields["chain"]).(string)
				chains[chain] = append(chains[chain], string(raw))
				continue
			}
			all = append(all, kind+" "+string(raw))
		}
	}
	for chain, rules := range chains {
		all = append(all, "rules of "+chain+": "+strings.Join(rules, "\n"))
	}
	slices.Sort(all)
	return all
}

// plain is a value of nft's without handles and counts, with sorted elements, and with names that
// do not say how often the table was replaced.
func plain(value any) any {
	switch v := value.(type) {
	case string:
		if _, err := netip.ParseAddr(v); err == nil {
			return v
		}
		return identity.ReplaceAllString(round.ReplaceAllString(v, ""), "berth: ")
	case map[string]any:
		clean := map[string]any{}
		for key, field := range v {
			switch key {
			case "handle", "packets", "bytes", "expires":
			case "elem":
				elements, _ := field.([]any)
				var texts []string
				for _, element := range elements {
					raw, _ := json.Marshal(plain(element))
					texts = append(texts, string(raw))
				}
				slices.Sort(texts)
				clean[key] = texts
			default:
				clean[key] = plain(field)
			}
		}
		return clean
	case []any:
		var clean []any
		for _, field := range v {
			clean = append(clean, plain(field))
		}
		return clean
	}
	return value
}
