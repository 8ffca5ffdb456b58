// SPDX-License-Identifier: Apache-2.0

package poolmap

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
)

func compiled(t *testing.T, subnet string, ranges []string, exclude ...string) *pools.Pool {
	t.Helper()
	snapshot := pools.Compile([]*v1alpha1.IPPool{{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: v1alpha1.IPPoolSpec{Subnet: subnet, Ranges: ranges, Exclude: exclude}}})
	if err := snapshot.Invalid("web"); err != nil {
		t.Fatal(err)
	}
	return snapshot.Pools()[0]
}

func usesOf(words ...string) Uses {
	var uses Uses
	for _, word := range words {
		addr, state, _ := strings.Cut(word, "=")
		uses = append(uses, Use{netip.MustParseAddr(addr), standing.State(state)})
	}
	uses.Sort()
	return uses
}

func TestUntaken(t *testing.T) {
	pool := compiled(t, "10.0.70.0/24", []string{"10.0.70.10-10.0.70.19", "10.0.70.30"}, "10.0.70.12")
	uses := usesOf("10.0.70.10=Held", "10.0.70.15=Retained", "10.0.70.99=Reserved")
	free := Untaken(pool, uses)
	if got := fmt.Sprint(free); got != "[10.0.70.11 10.0.70.13-10.0.70.14 10.0.70.16-10.0.70.19 10.0.70.30]" {
		t.Errorf("free are %s", got)
	}
	if got := fmt.Sprint(First(free, 4)); got != "[10.0.70.11 10.0.70.13 10.0.70.14 10.0.70.16]" {
		t.Errorf("the first are %s", got)
	}
	if got := First(free, 100); len(got) != 8 {
		t.Errorf("there are %v", got)
	}
	if got := Count(pool, uses); got != (Counts{Held: 1, Retained: 1}) || got.Taken() != 2 {
		t.Errorf("counts are %+v", got)
	}
}

// Of an address that was read twice, the last state counts.
func TestSort(t *testing.T) {
	if got := fmt.Sprint(usesOf("10.0.70.3=Held", "10.0.70.2=Held", "10.0.70.3=Retained")); got != "[{10.0.70.2 Held} {10.0.70.3 Retained}]" {
		t.Errorf("the uses are %s", got)
	}
}

func TestDraw(t *testing.T) {
	for name, test := range map[string]struct {
		pool  *pools.Pool
		uses  Uses
		block uint64
		rows  []string
	}{
		"a small subnet": {
			compiled(t, "10.0.70.0/28", []string{"10.0.70.2-10.0.70.13"}, "10.0.70.5"),
			usesOf("10.0.70.2=Held", "10.0.70.3=Retained", "10.0.70.4=Reserved", "10.0.70.6=Cooling", "10.0.70.15=Reserved"), 1,
			[]string{"10.0.70.0   #rR c....... R"},
		},
		"rows": {
			compiled(t, "10.0.70.0/25", []string{"10.0.70.60-10.0.70.66"}), usesOf("10.0.70.64=Held"), 1,
			[]string{"10.0.70.0 " + strings.Repeat(" ", 60) + "....", "10.0.70.64 #.." + strings.Repeat(" ", 61)},
		},
		"ranges of a large subnet": {
			compiled(t, "2001:db8::/64", []string{"2001:db8::1:0-2001:db8::1:3", "2001:db8::1:5", "2001:db8::9:0"}), usesOf("2001:db8::1:3=Held"), 1,
			[]string{"2001:db8::1:0 ...# .", "2001:db8::9:0 ."},
		},
		"blocks": {
			compiled(t, "10.0.0.0/16", []string{"10.0.0.0-10.0.15.255"}),
			usesOf("10.0.0.1=Held", "10.0.0.2=Held", "10.0.0.3=Held", "10.0.0.5=Held"), 4,
			[]string{"10.0.0.1 72" + strings.Repeat(".", 62)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			drawn, ok := Draw(test.pool, test.uses)
			var rows []string
			for _, row := range drawn.Rows {
				rows = append(rows, row.From.String()+" "+row.Cells)
			}
			rows = rows[:min(len(rows), len(test.rows))]
			if got, want := strings.Join(rows, "\n"), strings.Join(test.rows, "\n"); !ok || drawn.Block != test.block || got != want {
				t.Errorf("drawn in blocks of %d is\n%s\nwant\n%s", drawn.Block, got, want)
			}
			cells := 0
			for _, row := range drawn.Rows {
				cells += len(row.Cells)
			}
			if cells > mostCells {
				t.Errorf("%d cells", cells)
			}
		})
	}
	if _, ok := Draw(compiled(t, "2001:db8::/32", []string{"2001:db8::/33"}), nil); ok {
		t.Error("half of a /32 was drawn")
	}
	var full Uses
	pool := compiled(t, "10.0.0.0/16", []string{"10.0.0.4-10.0.15.255"})
	for _, addr := range First(pool.Ranges, 4) {
		full = append(full, Use{addr, standing.Held})
	}
	if drawn, _ := Draw(pool, full); !strings.HasPrefix(drawn.Rows[0].Cells, "#.") {
		t.Errorf("a full block is drawn as %s", drawn.Rows[0].Cells)
	}
}

// What a spec says of a pool's addresses, for people.
func TestTerms(t *testing.T) {
	for _, test := range []struct {
		spec         v1alpha1.IPPoolSpec
		given, nodes string
	}{
		{v1alpha1.IPPoolSpec{Ranges: []string{"10.0.70.8-10.0.70.40", "10.0.70.50"}}, "10.0.70.8-10.0.70.40, 10.0.70.50", "all"},
		{v1alpha1.IPPoolSpec{Ranges: []string{"10.0.70.0/25"}, Exclude: []string{"10.0.70.9"}, NodeSubnets: []string{"10.0.60.0/24"}}, "10.0.70.0/25 without 10.0.70.9", "in 10.0.60.0/24"},
		{v1alpha1.IPPoolSpec{NodeSubnets: []string{"10.0.60.0/24", "10.0.61.0/24"}, NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"rack": "1"}}}, "", "in 10.0.60.0/24, 10.0.61.0/24 with labels rack=1"},
		{v1alpha1.IPPoolSpec{Cooldown: &metav1.Duration{}}, "", "all"},
	} {
		got := TermsOf(&v1alpha1.IPPool{Spec: test.spec})
		if got.Given() != test.given || got.Nodes() != test.nodes || got.Cooldown != "" {
			t.Errorf("%+v: %+v gives %q on nodes %q, want %q and %q", test.spec, got, got.Given(), got.Nodes(), test.given, test.nodes)
		}
	}
}
