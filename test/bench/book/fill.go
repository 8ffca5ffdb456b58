// SPDX-License-Identifier: Apache-2.0

package book

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/allocator"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/iprange"
	"github.com/berth-dev/berth/ipam/pools"
)

// The largest cluster that is meant to work.
const (
	Pools       = 10_000
	PoolSize    = 100
	UsedPerPool = 15
	// InUse is how many addresses that is in all.
	InUse = Pools * UsedPerPool
	// bigPool is the size of the pool that fills up.
	bigPool = 1 << 20
	// rounds of reserve and release are measured one by one.
	rounds = 200_000
)

// Fill has the time in microseconds to take an address from a pool of a million that is
// so full. The addresses in use are scattered over the pool.
type Fill struct {
	PercentFull      float64
	First            float64 // the first reservation after the start
	Reserve, Release Micros
}

// Micros are the quantiles of measured times.
type Micros struct{ P50, P99, P999, Max float64 }

// Cluster has the times and the memory of the book of the largest cluster: 10,000 pools
// of 100 addresses, 15 of each in use.
type Cluster struct {
	CompileMillis, SetPoolsMillis, ObserveMillis float64
	BytesPerAddress                              float64
	// One is a reservation for a pod on a node in one pool, All for one that may
	// have an address of any of the 10,000.
	One, All Micros
}

// v4 is the i-th address of 10.0.0.0/8.
func v4(i int) netip.Addr {
	var addr [4]byte
	binary.BigEndian.PutUint32(addr[:], 10<<24+uint32(i))
	return netip.AddrFrom4(addr)
}

func ownerOf(podUID string) allocator.Owner {
	return allocator.Owner{APIVersion: "v1", Kind: "Pod", Namespace: "bench", Name: podUID, UID: podUID, PodName: podUID}
}

// record returns the record that the API server would have of an address in use.
func record(i int, pool string) allocator.Record {
	pod := fmt.Sprintf("web-%d", i)
	return allocator.Record{
		Addr: v4(i), Pool: pool, PodName: pod, PodUID: fmt.Sprintf("5f0c4c1e-0000-4000-8000-%012d", i),
		Owner: allocator.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: "bench", Name: "web", UID: "3d4c4c1e-0000-4000-8000-000000000000", PodName: pod},
		UID:   fmt.Sprintf("7a1c4c1e-0000-4000-8000-%012d", i), Version: uint64(i + 1),
	}
}

// MeasureFills measures one big pool as it fills up.
func MeasureFills() ([]Fill, error) {
	var fills []Fill
	for _, percent := range []float64{0, 50, 90, 99, 99.9} {
		book := allocator.New(nil)
		view := book.SetPools([]allocator.Pool{{Name: "big", Ranges: iprange.Set{{First: v4(0), Last: v4(bigPool - 1)}}, Capacity: bigPool}})
		// The same order each time: results are compared.
		order := rand.New(rand.NewPCG(1, 2)).Perm(bigPool)
		for _, i := range order[:int(bigPool*percent/100)] {
			book.Observe(record(i, "big"))
		}
		fill := Fill{PercentFull: percent}
		start := time.Now()
		addr, err := reserve(book, view, []int{0}, "first")
		fill.First = micros(time.Since(start))
		if err != nil {
			return nil, fmt.Errorf("reserve at %v %%: %w", percent, err)
		}
		book.Release(addr, "first")
		if fill.Reserve, fill.Release, err = cycle(book, view, rounds, func(int) []int { return []int{0} }); err != nil {
			return nil, fmt.Errorf("reserve at %v %%: %w", percent, err)
		}
		fills = append(fills, fill)
	}
	return fills, nil
}

// cycle reserves and releases, and times each.
func cycle(book *allocator.Allocator, view *allocator.View, n int, pools func(i int) []int) (reserving, releasing Micros, err error) {
	reserves, releases := make([]time.Duration, n), make([]time.Duration, n)
	runtime.GC() // so that earlier garbage is not collected while the clock runs
	for i := range n {
		positions := pools(i)
		start := time.Now()
		addr, err := reserve(book, view, positions, "pod")
		reserved := time.Now()
		if err != nil {
			return Micros{}, Micros{}, err
		}
		book.Release(addr, "pod")
		reserves[i], releases[i] = reserved.Sub(start), time.Since(reserved)
	}
	return quantiles(reserves), quantiles(releases), nil
}

func quantiles(times []time.Duration) Micros {
	slices.Sort(times)
	at := func(q float64) float64 { return micros(times[int(q*float64(len(times)-1))]) }
	return Micros{P50: at(0.5), P99: at(0.99), P999: at(0.999), Max: at(1)}
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// poolObjects are the IPPools of the largest cluster, each for one rack of nodes.
func poolObjects() []*v1alpha1.IPPool {
	var objects []*v1alpha1.IPPool
	for i := range Pools {
		subnet := netip.PrefixFrom(v4(i*256), 24)
		objects = append(objects, &v1alpha1.IPPool{
			ObjectMeta: metav1.ObjectMeta{Name: poolName(i), UID: "u", ResourceVersion: "1"},
			Spec: v1alpha1.IPPoolSpec{
				Subnet: subnet.String(), Gateway: v4(i*256 + 254).String(),
				Ranges:      []string{fmt.Sprintf("%s-%s", v4(i*256+1), v4(i*256+PoolSize))},
				NodeSubnets: []string{netip.PrefixFrom(netip.AddrFrom4([4]byte{172, byte(16 + i/256%16), byte(i % 256), 0}), 24).String()},
			},
		})
	}
	return objects
}

func poolName(i int) string { return fmt.Sprintf("pool-%d", i) }

// inUse calls do for the number of every address in use.
func inUse(do func(i int, pool string)) {
	for pool := range Pools {
		for i := range UsedPerPool {
			do(pool*256+1+i*(PoolSize/UsedPerPool), poolName(pool))
		}
	}
}

// MeasureCluster measures the book of the largest cluster.
func MeasureCluster() (*Cluster, error) {
	objects := poolObjects()
	c := &Cluster{}
	start := time.Now()
	snapshot := pools.Compile(objects)
	c.CompileMillis = millis(time.Since(start))
	if len(snapshot.Pools()) != Pools {
		return nil, fmt.Errorf("%d of %d pools are valid", len(snapshot.Pools()), Pools)
	}
	var converted []allocator.Pool
	for _, pool := range snapshot.Pools() {
		converted = append(converted, allocator.Pool{Name: pool.Name, Ranges: pool.Ranges, Capacity: pool.Ranges.Size()})
	}
	before := heap()
	book := allocator.New(nil)
	start = time.Now()
	view := book.SetPools(converted)
	c.SetPoolsMillis = millis(time.Since(start))
	start = time.Now()
	inUse(func(i int, pool string) { book.Observe(record(i, pool)) })
	c.ObserveMillis = millis(time.Since(start))
	c.BytesPerAddress = float64(heap()-before) / InUse

	all := make([]int, Pools)
	for i := range all {
		all[i] = i
	}
	var err error
	if c.One, _, err = cycle(book, view, rounds, func(i int) []int { return all[i%Pools : i%Pools+1] }); err != nil {
		return nil, err
	}
	if c.All, _, err = cycle(book, view, rounds/100, func(int) []int { return all }); err != nil {
		return nil, err
	}
	runtime.KeepAlive(book)
	return c, nil
}

// cpu returns the CPU time of this process so far.
func cpu() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0 // it cannot fail with these arguments
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func heap() uint64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
