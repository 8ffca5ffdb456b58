// SPDX-License-Identifier: Apache-2.0

// Package iptablestest interprets the output of package iptables without a kernel, so that tests
// can compare its verdicts with the ruleset's.
package iptablestest

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-dev/berth/agent/policy/iptables"
	"github.com/berth-dev/berth/agent/policy/ruleset"
)

// maxChainName and maxSetName are the kernel's limits: XT_EXTENSION_MAXNAMELEN and IPSET_MAXNAMELEN
// without the final zero byte.
const (
	maxChainName = 28
	maxSetName   = 31
)

// Kernel has rules and sets.
type Kernel struct {
	sets map[string]*set
	// chains are by family: 0 for IPv4, 1 for IPv6.
	chains [2]map[string][][]string
}

type set struct {
	family   string
	kind     string
	elements map[string]bool
	nets     []netip.Prefix
}

// Of returns a kernel that has the text of a ruleset.
func Of(rs *ruleset.Ruleset) (*Kernel, error) {
	text, err := iptables.TextOf(rs)
	if err != nil {
		return nil, err
	}
	k := &Kernel{sets: map[string]*set{}}
	for row := range strings.Lines(text.Sets) {
		if err := k.changeSet(strings.Fields(row)); err != nil {
			return nil, fmt.Errorf("%q: %w", row, err)
		}
	}
	for i, rules := range text.Rules {
		k.chains[i] = map[string][][]string{"INPUT": nil, "FORWARD": nil, "OUTPUT": nil}
		for row := range strings.Lines(rules) {
			if err := k.changeRules(i, split(strings.TrimSpace(row))); err != nil {
				return nil, fmt.Errorf("%q: %w", row, err)
			}
		}
	}
	return k, nil
}

func (k *Kernel) changeSet(words []string) error {
	switch {
	case len(words) == 7 && words[0] == "create" && len(words[1]) <= maxSetName && k.sets[words[1]] == nil:
		k.sets[words[1]] = &set{kind: words[2], family: words[4], elements: map[string]bool{}}
	case len(words) == 3 && words[0] == "add" && k.sets[words[1]] != nil:
		return k.sets[words[1]].add(words[2])
	default:
		return fmt.Errorf("no command of ipset")
	}
	return nil
}

func (s *set) add(element string) error {
	if s.elements[element] {
		return fmt.Errorf("the set has it already")
	}
	s.elements[element] = true
	if s.kind != "hash:net" {
		return nil
	}
	p, err := netip.ParsePrefix(element)
	if err != nil {
		var a netip.Addr
		if a, err = netip.ParseAddr(element); err != nil {
			return err
		}
		p = netip.PrefixFrom(a, a.BitLen())
	}
	if p.Bits() == 0 || p != p.Masked() {
		return fmt.Errorf("hash:net cannot have it")
	}
	s.nets = append(s.nets, p)
	return nil
}

func (k *Kernel) changeRules(family int, words []string) error {
	chains := k.chains[family]
	switch {
	case len(words) == 1 && (words[0] == "*security" || words[0] == "COMMIT"):
	case strings.HasPrefix(words[0], ":") && len(words[0]) <= maxChainName+1:
		chains[words[0][1:]] = nil
	case words[0] == "-A":
		if _, ok := chains[words[1]]; !ok {
			return fmt.Errorf("there is no such chain")
		}
		chains[words[1]] = append(chains[words[1]], words[2:])
	case words[0] == "-I":
		at, err := strconv.Atoi(words[2])
		if err != nil {
			return err
		}
		chains[words[1]] = slices.Insert(chains[words[1]], at-1, words[3:])
	default:
		return fmt.Errorf("no line of iptables-restore")
	}
	return nil
}

// split returns the words of a line; a quoted part is a single word.
func split(row string) []string {
	var words []string
	for row != "" {
		if rest, ok := strings.CutPrefix(row, `"`); ok {
			end := strings.Index(rest, `"`)
			for end > 0 && rest[end-1] == '\\' {
				end += 1 + strings.Index(rest[end+1:], `"`)
			}
			words, row = append(words, rest[:end]), strings.TrimPrefix(rest[end+1:], " ")
			continue
		}
		var word string
		word, row, _ = strings.Cut(row, " ")
		words = append(words, word)
	}
	return words
}

var hooks = map[ruleset.Hook]string{ruleset.Input: "INPUT", ruleset.Forward: "FORWARD", ruleset.Output: "OUTPUT"}

// Walk returns the verdict on a packet of a connection that was not ended.
func (k *Kernel) Walk(hook ruleset.Hook, p ruleset.Packet) (ruleset.Verdict, error) {
	drops, _, err := k.run(hooks[hook], p, 0)
	if drops {
		return ruleset.Drop, err
	}
	return ruleset.Accept, err
}

// run runs a chain. A packet that no rule drops returns.
func (k *Kernel) run(name string, p ruleset.Packet, depth int) (drops, returned bool, err error) {
	family := int(ruleset.FamilyOf(p.Source) - ruleset.IPv4)
	rules, ok := k.chains[family][name]
	if !ok || depth > 16 {
		return false, false, fmt.Errorf("there is no chain %s, or it leads to itself", name)
	}
	for _, words := range rules {
		target, matches, err := k.match(words, p)
		switch {
		case err != nil:
			return false, false, fmt.Errorf("chain %s: %q: %w", name, words, err)
		case !matches || target == "":
		case target == "-j DROP":
			return true, false, nil
		case target == "-j RETURN":
			return false, true, nil
		case strings.HasPrefix(target, "-g "):
			return k.run(target[3:], p, depth+1)
		default:
			if drops, _, err = k.run(strings.TrimPrefix(target, "-j "), p, depth+1); drops || err != nil {
				return drops, false, err
			}
		}
	}
	return false, true, nil
}

// protocols of iptables.
var protocols = map[string]ruleset.Protocol{"tcp": ruleset.TCP, "udp": ruleset.UDP, "sctp": ruleset.SCTP}

// match returns the target of a rule, and whether a packet meets the rule's conditions.
func (k *Kernel) match(words []string, p ruleset.Packet) (target string, matches bool, err error) {
	matches = true
	take := func() (value string) { value, words = words[1], words[2:]; return value }
	for len(words) > 0 {
		var ok bool
		switch words[0] {
		case "-j", "-g":
			verb := words[0]
			target, ok = verb+" "+take(), true
		case "-s":
			ok = take() == fmt.Sprintf("%s/%d", p.Source, p.Source.BitLen())
		case "-d":
			ok = take() == fmt.Sprintf("%s/%d", p.Destination, p.Destination.BitLen())
		case "-i":
			ok = take() == p.InInterface
		case "-o":
			ok = take() == p.OutInterface
		case "-p":
			protocol := take()
			ok = protocols[protocol] == p.Protocol && protocols[protocol] != 0 || protocol == "ipv6-icmp"
		case "-m":
			ok, err = k.matchModule(&words, p)
		default:
			return "", false, fmt.Errorf("unknown word %q", words[0])
		}
		if err != nil {
			return "", false, err
		}
		matches = matches && ok
	}
	return target, matches, nil
}

// matchModule takes a match from the words.
func (k *Kernel) matchModule(words *[]string, p ruleset.Packet) (bool, error) {
	take := func(n int) []string { some := (*words)[:n]; *words = (*words)[n:]; return some }
	switch name := (*words)[1]; name {
	case "comment":
		return len(take(4)[3]) <= 255, nil
	case "conntrack":
		take(4)
		return p.Established, nil
	case "connmark":
		// No packet belongs to an ended connection.
		if (*words)[2] == "!" {
			take(5)
			return true, nil
		}
		take(4)
		return false, nil
	case "addrtype":
		take(4)
		return p.LocalSource, nil
	case "icmp6", "hl":
		// Type 133 is neighbour discovery, 130 multicast listeners; the hop limits select the same.
		if value := take(4)[3]; value == "1" || value == "130" || value == "131" || value == "132" || value == "143" {
			return p.MulticastListener, nil
		}
		return p.NeighborDiscovery, nil
	case "tcp", "udp", "sctp", "multiport":
		return hasPort(take(4)[3], p.Port)
	case "set":
		w := take(5)
		s := k.sets[w[3]]
		if s == nil {
			return false, fmt.Errorf("there is no set %s", w[3])
		}
		return s.has(strings.Split(w[4], ","), p), nil
	default:
		return false, fmt.Errorf("unknown match %q", name)
	}
}

// maxPorts is the limit of multiport, where a range counts twice.
const maxPorts = 15

func hasPort(text string, port uint16) (has bool, err error) {
	if strings.Count(text, ",")+strings.Count(text, ":")+1 > maxPorts {
		return false, fmt.Errorf("more ports than multiport has")
	}
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, ":")
		if !isRange {
			last = first
		}
		low, err := strconv.ParseUint(first, 10, 16)
		if err != nil {
			return false, err
		}
		high, err := strconv.ParseUint(last, 10, 16)
		if err != nil {
			return false, err
		}
		has = has || uint64(port) >= low && uint64(port) <= high
	}
	return has, nil
}

// has reports whether the set has the fields of a packet.
func (s *set) has(fields []string, p ruleset.Packet) bool {
	if s.family == "inet" != p.Source.Is4() {
		return false
	}
	at := func(field string) netip.Addr {
		if field == "src" {
			return p.Source
		}
		return p.Destination
	}
	switch s.kind {
	case "hash:ip":
		return s.elements[at(fields[0]).String()]
	case "hash:net":
		return slices.ContainsFunc(s.nets, func(n netip.Prefix) bool { return n.Contains(at(fields[0])) })
	case "hash:net,iface":
		link := p.OutInterface
		if fields[1] == "src" {
			link = p.InInterface
		}
		return s.elements[fmt.Sprintf("%s,%s", at(fields[0]), link)]
	case "hash:ip,port":
		for name, protocol := range protocols {
			if protocol == p.Protocol {
				return s.elements[fmt.Sprintf("%s,%s:%d", p.Destination, name, p.Port)]
			}
		}
	}
	return false
}
