// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// addressesOf reads addresses such as "a: 1=n1 2=n2~ | b!: 1=n3", where ~ is a withdrawn block and
// ! a closed address.
func addressesOf(t *testing.T, text string) (all []address) {
	t.Helper()
	for part := range strings.SplitSeq(text, "|") {
		name, blocks, _ := strings.Cut(strings.TrimSpace(part), ":")
		a := address{name: strings.TrimSuffix(name, "!"), closed: strings.HasSuffix(name, "!")}
		for block := range strings.FieldsSeq(blocks) {
			var b v1alpha1.EgressBlock
			if _, err := fmt.Sscanf(block, "%d=%s", &b.Index, &b.Node); err != nil {
				t.Fatal(err)
			}
			b.Withdrawn = strings.HasSuffix(b.Node, "~")
			b.Node = strings.TrimSuffix(b.Node, "~")
			a.blocks = append(a.blocks, b)
		}
		all = append(all, a)
	}
	return all
}

func textOf(all []address) string {
	var parts []string
	for _, a := range all {
		text := a.name
		if a.closed {
			text += "!"
		}
		text += ":"
		for _, b := range a.blocks {
			text += fmt.Sprintf(" %d=%s", b.Index, b.Node)
			if b.Withdrawn {
				text += "~"
			}
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, " | ")
}

func TestAssign(t *testing.T) {
	for _, test := range []struct {
		name, before             string
		ports                    int32
		wanting, resting, stands string // by spaces; stands: have not stopped
		want, lacking            string
	}{
		{name: "the first node", before: "a:", wanting: "n1", want: "a: 1=n1"},
		{name: "below 1024 there is none", before: "a:", ports: 128, wanting: "n1 n2", want: "a: 8=n1 9=n2"},
		{name: "the first free one", before: "a: 1=n1 3=n3", wanting: "n3 n1 n2", want: "a: 1=n1 2=n2 3=n3"},
		{name: "of the address with most", before: "a: 1=n1 2=n2 | b: 1=n3", wanting: "n1 n2 n3 n4 n5", want: "a: 1=n1 2=n2 3=n5 | b: 1=n3 2=n4"},
		{name: "none of a closed address", before: "a!: 1=n1 | b: 1=n2", wanting: "n1 n2 n3", want: "a!: 1=n1 | b: 1=n2 2=n3"},
		{name: "all are taken", before: "a: 1=n1 2=n2", ports: 16384, wanting: "n1 n2 n3 n4 n5", want: "a: 1=n1 2=n2 3=n3", lacking: "n4 n5"},
		{name: "at rest", before: "a: 1=n1 2=n2", wanting: "n2", resting: "n1", want: "a: 1=n1 2=n2"},
		{name: "withdrawn first", before: "a: 1=n1 2=n2", wanting: "n2", want: "a: 1=n1~ 2=n2"},
		{name: "then free", before: "a: 1=n1~ 2=n2", wanting: "n2 n3", want: "a: 1=n3 2=n2"},
		{name: "not before it stopped", before: "a: 1=n1~ 2=n2", wanting: "n2 n3", stands: "n1", want: "a: 1=n1~ 2=n2 3=n3"},
		{name: "back in time", before: "a: 1=n1~", wanting: "n1", stands: "n1", want: "a: 1=n1"},
		{name: "a rest does not bring it back", before: "a: 1=n1~", resting: "n1", stands: "n1", want: "a: 1=n1~"},
		{name: "two of a node", before: "a: 1=n1 | b: 1=n1", wanting: "n1", stands: "n1", want: "a: 1=n1 | b: 1=n1~"},
		{name: "the one that it sends from", before: "a: 1=n1~ | b: 1=n1", wanting: "n1", stands: "n1", want: "a: 1=n1~ | b: 1=n1"},
		{name: "two withdrawn", before: "a: 1=n1~ | b: 1=n1~", wanting: "n1", stands: "n1", want: "a: 1=n1 | b: 1=n1~"},
	} {
		t.Run(test.name, func(t *testing.T) {
			all := addressesOf(t, test.before)
			in := func(list string) func(string) bool {
				return func(node string) bool { return slices.Contains(strings.Fields(list), node) }
			}
			if test.ports == 0 {
				test.ports = 1024
			}
			lacking := assign(all, test.ports, nodes{strings.Fields(test.wanting), in(test.resting), fitsAll, func(_, node string) bool { return !in(test.stands)(node) }})
			if diff := cmp.Diff(test.want, textOf(all)); diff != "" {
				t.Error(diff)
			}
			if got := strings.Join(lacking, " "); got != test.lacking {
				t.Errorf("lacking are %q, want %q", got, test.lacking)
			}
		})
	}
}

func fitsAll(string, string) bool { return true }

func TestBlocks(t *testing.T) {
	for ports, want := range map[int32]int{128: 504, 1024: 63, 2048: 31, 16384: 3} {
		first, n := v1alpha1.FirstEgressBlock(ports), v1alpha1.EgressBlocks(ports)
		if n != want || first*ports < 1024 || int(first)+n != int(65536/ports) {
			t.Errorf("%d ports: %d blocks from %d", ports, n, first)
		}
	}
}
