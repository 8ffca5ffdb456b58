// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"testing"

	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/agent/policy/ruleset/rulesettest"
)

// A kernel that was started without IPv6 has no file of its addresses, and ip6tables is not called.
func TestLacks(t *testing.T) {
	for _, tc := range []struct {
		family ruleset.Family
		file   string
		want   bool
	}{{ruleset.IPv4, "/nowhere", false}, {ruleset.IPv6, "/nowhere", true}, {ruleset.IPv6, inet6, false}} {
		if got := lacks(tc.family, tc.file); got != tc.want {
			t.Errorf("lacks(%v, %s) = %t", tc.family, tc.file, got)
		}
	}
}

// The line that a program complains of is part of its error.
func TestLineOf(t *testing.T) {
	for said, want := range map[string]string{
		"iptables-restore: Error occurred at line: 2": "two", "ipset v7.17: Error in line 3: Set cannot be added": "three",
		"iptables-restore v1.8.9 (nf_tables): line 1 failed": "one", "no number": "", "line 9 failed": "",
	} {
		if got := lineOf([]byte("one\ntwo\nthree\n"), said); got != want {
			t.Errorf("lineOf(%q) = %q, want %q", said, got, want)
		}
	}
}

// The rules that a try makes are a ruleset as the compiler makes them.
func TestSample(t *testing.T) {
	if err := rulesettest.Check(sample()); err != nil {
		t.Error(err)
	}
}
