// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/cmd/kubectl-berth/console/access"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/page"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/register"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// many are the addresses of BenchmarkRequests, perPool of them in a pool.
const many, perPool = 150_000, 900

// hold fills a register with addresses that pods hold, as simulation.HoldMany does on an API
// server.
func hold(to *register.Register, n int) {
	since := metav1.NewTime(time.Now().Add(-time.Hour))
	var (
		rows  []*register.Row
		pools []*v1alpha1.IPPool
	)
	for i := range n {
		pool, at := i/perPool, i%perPool
		subnet := netip.AddrFrom4([4]byte{10, byte(1 + pool/64), byte(pool % 64 * 4), 0})
		if at == 0 {
			pools = append(pools, &v1alpha1.IPPool{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pool-%d", pool), Generation: 1},
				Spec:       v1alpha1.IPPoolSpec{Subnet: subnet.String() + "/22", Ranges: []string{fmt.Sprintf("10.%d.%d.1-10.%d.%d.232", subnet.As4()[1], subnet.As4()[2], subnet.As4()[1], subnet.As4()[2]+3)}},
			})
		}
		addr := netip.AddrFrom4([4]byte{10, subnet.As4()[1], subnet.As4()[2] + byte((at+1)/256), byte((at + 1) % 256)})
		row, ok := register.RowOf(&v1alpha1.FloatingIP{
			ObjectMeta: metav1.ObjectMeta{Name: addr.String(), UID: types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", i)), ResourceVersion: fmt.Sprint(i)},
			Spec: v1alpha1.FloatingIPSpec{
				Address: addr.String(), Pool: pools[pool].Name, Node: fmt.Sprintf("node-%d", at%200), ReleasePolicy: v1alpha1.ReleaseRetain, Since: &since,
				Network: &v1alpha1.Network{Subnet: pools[pool].Spec.Subnet},
				Owner:   &v1alpha1.Owner{Kind: "StatefulSet", Namespace: "default", Name: fmt.Sprintf("web-%d", pool)},
				Pod:     &v1alpha1.PodReference{Name: fmt.Sprintf("web-%d-%d", pool, at)},
			},
		})
		if !ok {
			panic(addr)
		}
		rows = append(rows, row)
	}
	to.Objects.Pools.Replace(pools)
	to.ReplaceFloatingIPs(rows)
	to.Objects.Waiting.Replace(nil)
	to.Objects.Nodes.Replace(nil)
}

// used returns the CPU time that the process used so far.
func used(b *testing.B) time.Duration {
	b.Helper()
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// Requests of programs and of browsers, one after the other.
func BenchmarkRequests(b *testing.B) {
	filled := register.New()
	hold(filled, many)
	handler := Secure(Handler(page.Options{Register: filled, ReadOnly: "x"}))
	for _, path := range []string{
		"/api/v1/summary", "/api/v1/pools", "/api/v1/pools/pool-7/map", "/api/v1/addresses/10.1.0.7", "/api/v1/addresses/10.1.0.7/why",
		"/api/v1/addresses?limit=100&sort=address", "/api/v1/addresses?limit=100&sort=since&order=desc", "/api/v1/addresses?limit=100&sort=pod", "/api/v1/addresses?limit=100&sort=pod&order=desc",
		"/api/v1/addresses?limit=100&sort=owner", "/api/v1/addresses?limit=100&sort=node&order=desc", "/api/v1/addresses?limit=100&sort=namespace&order=desc",
		"/api/v1/addresses?q=web-7", "/api/v1/addresses?q=web-77-123", "/api/v1/addresses?q=node-17", "/api/v1/addresses?q=10.1.0.", "/api/v1/addresses?q=nobody-has-this",
		"/", "/waiting", "/nodes", "/changes", "/pools/pool-7", "/addresses", "/addresses?sort=pod&order=desc", "/addresses?sort=node", "/addresses?q=web-7", "/addresses?q=10.1.0.", "/addresses?q=nobody-has-this", "/addresses/10.1.0.7",
	} {
		b.Run(strings.ReplaceAll(path, "/", "_"), func(b *testing.B) {
			b.ReportAllocs()
			size, before := 0, used(b)
			for b.Loop() {
				answer := httptest.NewRecorder()
				request := httptest.NewRequestWithContext(access.With(b.Context(), register.Everything), http.MethodGet, path, nil)
				handler.ServeHTTP(answer, request)
				if size = answer.Body.Len(); answer.Code != http.StatusOK {
					b.Fatalf("%d: %s", answer.Code, answer.Body)
				}
			}
			b.ReportMetric(float64(used(b)-before)/float64(b.N)/1e6, "cpu-ms/op")
			b.ReportMetric(float64(size), "bytes")
		})
	}
}
