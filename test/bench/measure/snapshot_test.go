// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const before = `
# TYPE d histogram
d_bucket{plugin="a",le="0.1"} 10
d_bucket{plugin="a",le="0.2"} 10
d_bucket{plugin="a",le="+Inf"} 10
d_sum{plugin="a"} 1
d_count{plugin="a"} 10
# TYPE apiserver_request_total counter
apiserver_request_total{verb="POST",resource="pods",subresource=""} 7
apiserver_request_total{verb="GET",resource="nodes",subresource=""} 3
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 1.5
`

const after = `
# TYPE d histogram
d_bucket{plugin="a",le="0.1"} 15
d_bucket{plugin="a",le="0.2"} 20
d_bucket{plugin="a",le="+Inf"} 20
d_sum{plugin="a"} 2.25
d_count{plugin="a"} 20
d_bucket{plugin="b",le="0.1"} 1
d_bucket{plugin="b",le="0.2"} 1
d_bucket{plugin="b",le="+Inf"} 1
d_sum{plugin="b"} 0.05
d_count{plugin="b"} 1
# TYPE apiserver_request_total counter
apiserver_request_total{verb="POST",resource="pods",subresource=""} 9
apiserver_request_total{verb="POST",resource="pods",subresource="binding"} 4
apiserver_request_total{verb="GET",resource="nodes",subresource=""} 3
# TYPE process_cpu_seconds_total counter
process_cpu_seconds_total 2
`

func interval(t *testing.T) Interval {
	t.Helper()
	first, err := read(strings.NewReader(before))
	if err != nil {
		t.Fatal(err)
	}
	second, err := read(strings.NewReader(after))
	if err != nil {
		t.Fatal(err)
	}
	return Interval{first, second}
}

func TestHistogram(t *testing.T) {
	h := interval(t).Histogram("d", func(l Labels) bool { return l["plugin"] == "a" })
	if h.Count != 10 || h.Mean() != 125*time.Millisecond {
		t.Errorf("count %v, mean %v, want 10, 125ms", h.Count, h.Mean())
	}
	// Half of the ten are in each bucket.
	for q, want := range map[float64]time.Duration{0.25: 50 * time.Millisecond, 0.5: 100 * time.Millisecond, 0.75: 150 * time.Millisecond} {
		if got := h.Quantile(q); got.Round(time.Millisecond) != want {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
	if all := interval(t).Histogram("d", func(Labels) bool { return true }); all.Count != 11 {
		t.Errorf("count of all is %v, want 11", all.Count)
	}
	if none := interval(t).Histogram("e", func(Labels) bool { return true }); none.Mean() != 0 || none.Quantile(0.5) != 0 {
		t.Errorf("nothing was counted, yet mean is %v", none.Mean())
	}
}

func TestCounters(t *testing.T) {
	i := interval(t)
	if diff := cmp.Diff(map[string]float64{"POST pods": 2, "POST pods/binding": 4}, i.Requests()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if i.CPU() != 500*time.Millisecond {
		t.Errorf("CPU %v, want 0.5s", i.CPU())
	}
}
