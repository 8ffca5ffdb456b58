// SPDX-License-Identifier: Apache-2.0

package agentlog

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestAdds(t *testing.T) {
	const log = `I1122 14:46:01.123456    4711 run.go:150] "Serving CNI" socket="/run/berth/agent.sock" node="a"
I1122 14:46:02.500000    4711 add.go:130] "Attached" pod="default/web-0" containerID="c1" interfaces=["eth0"] ips=["10.0.70.5"] took="12.5ms" steps="plan=1.5 record=0.4 wire=10.6"
`
	got, err := Adds(log, time.Date(2026, 12, 31, 0, 0, 0, 0, time.Local))
	if err != nil {
		t.Fatal(err)
	}
	want := []Add{{
		Pod: "default/web-0", Done: time.Date(2026, 11, 22, 14, 46, 2, 500e6, time.Local), Took: 12500 * time.Microsecond,
		Names: []string{"plan", "record", "wire"},
		Steps: map[string]time.Duration{"plan": 1500 * time.Microsecond, "record": 400 * time.Microsecond, "wire": 10600 * time.Microsecond},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	slow := Add{Names: []string{"plan"}, Steps: map[string]time.Duration{"plan": 3 * time.Millisecond}}
	if steps := Steps(append(got, slow, slow)); steps != "plan 3.0, record 0.4, wire 10.6" {
		t.Errorf("Steps returns %q", steps)
	}
}
