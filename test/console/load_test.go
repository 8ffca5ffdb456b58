// SPDX-License-Identifier: Apache-2.0

package console

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/seedtest"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/proxy"
)

const (
	// loaded is how many addresses TestLoad makes.
	loaded = 150_000
	// lasts is how long it asks for each mix.
	lasts = 30 * time.Second
	// rate is how many requests it makes in a second.
	rate = 200
	// perPool is how many addresses HoldMany makes in a pool.
	perPool = 900
	// followers are the browsers that follow meanwhile.
	followers = 5
	// churn is the pause between two changes of addresses meanwhile.
	churn = 100 * time.Millisecond
)

// Many requests at once, while addresses change: how long they take, and how much CPU time and
// memory the console needs, is printed, and is for the documentation. Each is answered, and none
// leads to a request to the API server.
func TestLoad(t *testing.T) {
	w := simulation.NewWith(t, simulation.Options{Lasts: time.Hour})
	w.Nodes(2)
	began := time.Now()
	w.HoldMany(loaded)
	t.Logf("created %d addresses in %s", loaded, time.Since(began).Round(time.Second))
	w.Grant("viewer-rbac.yaml", viewer)
	c := startAs(w, viewer, "GODEBUG=gctrace=1")
	began = time.Now()
	c.until("wait until the console has all addresses", func() error {
		s := read[summary](c, "/summary")
		return complainIf(s.Addresses != loaded, "there are %d: %q", s.Addresses, s.Missing)
	})
	t.Logf("the console knew all addresses after %s; memory: %s", time.Since(began).Round(10*time.Millisecond), c.memory())
	for _, mix := range []struct {
		name string
		of   []kind
	}{{"the API", apiKinds(loaded)}, {"pages", pageKinds(loaded)}} {
		c.load(mix.name, mix.of, lasts)
	}
	timePages(startBrowser(w).open(c))
}

// timePages prints how long a browser waits for pages, from the request to the end of the answer,
// and until they are drawn.
func timePages(t *tab) {
	t.c.w.T.Helper()
	for _, path := range []string{"/", "/pools/pool-0", "/addresses", "/addresses?q=web-7", "/addresses?q=node-17&sort=pod", "/addresses/10.1.0.7", "/nodes"} {
		var took [2][]time.Duration
		for range 9 {
			t.visit(path)
			for i, end := range []string{"responseEnd", "domContentLoadedEventEnd"} {
				milliseconds := eval[float64](t, "performance.getEntriesByType('navigation')[0].%s", end)
				took[i] = append(took[i], time.Duration(milliseconds*float64(time.Millisecond)))
			}
		}
		t.c.w.T.Logf("%s: %s answered, %s drawn (medians of 9)", path, median(took[0]), median(took[1]))
	}
}

func median(times []time.Duration) time.Duration {
	slices.Sort(times)
	return times[len(times)/2].Round(100 * time.Microsecond)
}

// kind is a kind of requests, and its share of them all.
type kind struct {
	name  string
	share int
	path  func(r *rand.Rand) string
}

// apiKinds are the requests of programs, half of them for pages of addresses and searches.
func apiKinds(n int) []kind {
	pools := (n + perPool - 1) / perPool
	const addresses = prefix + "/addresses"
	return []kind{
		{"page", 25, func(r *rand.Rand) string {
			sorts := []string{"address", "since", "pod", "namespace", "owner", "node"}
			return addresses + "?limit=100&sort=" + sorts[r.IntN(len(sorts))] + "&order=" + []string{"asc", "desc"}[r.IntN(2)]
		}},
		{"search", 25, func(r *rand.Rand) string { return addresses + "?q=" + url.QueryEscape(searched(r, pools)) }},
		{"summary", 10, func(*rand.Rand) string { return prefix + "/summary" }},
		{"pools", 10, func(*rand.Rand) string { return prefix + "/pools" }},
		{"map", 10, func(r *rand.Rand) string { return fmt.Sprintf("%s/pools/pool-%d/map", prefix, r.IntN(pools)) }},
		{"address", 20, func(r *rand.Rand) string {
			return addresses + "/" + inPool(r, r.IntN(pools)) + []string{"", "/why"}[r.IntN(2)]
		}},
	}
}

// pageKinds are the requests of browsers.
func pageKinds(n int) []kind {
	kinds := apiKinds(loaded)
	for i := range kinds {
		of := kinds[i].path
		kinds[i].path = func(r *rand.Rand) string {
			path := strings.TrimPrefix(of(r), prefix)
			switch path {
			case "/summary":
				return []string{"/", "/waiting", "/nodes", "/changes"}[r.IntN(4)]
			case "/pools":
				return "/"
			}
			path = strings.TrimSuffix(strings.TrimSuffix(path, "/map"), "/why")
			return strings.Replace(path, "limit=100&", "", 1)
		}
	}
	return kinds
}

// searched returns a text that a person looks for: a pod, a part of its name, a node, an address, a
// part of it, or a prefix.
func searched(r *rand.Rand, pools int) string {
	pool := r.IntN(pools)
	texts := []string{
		fmt.Sprintf("web-%d-%d", pool, r.IntN(perPool)), fmt.Sprintf("web-%d", pool), fmt.Sprintf("node-%d", r.IntN(200)), inPool(r, pool),
		strings.Join(strings.Split(inPool(r, pool), ".")[:3], ".") + ".", inPool(r, pool) + "/24", "nobody-has-this",
	}
	return texts[r.IntN(len(texts))]
}

// inPool returns an address of a pool that HoldMany makes.
func inPool(r *rand.Rand, pool int) string {
	return fmt.Sprintf("10.%d.%d.%d", 1+pool/64, pool%64*4+r.IntN(3), 1+r.IntN(254))
}

// load makes requests for a while, at their times also if earlier ones take long, and prints how
// long they took.
func (c *console) load(name string, kinds []kind, lasts time.Duration) {
	t := c.w.T
	t.Helper()
	byAPI := func() int { return len(c.Seen(func(call proxy.Call) bool { return !call.Watch })) }
	asked := byAPI()
	ctx, cancel := context.WithCancel(c.w.Ctx)
	defer cancel()
	beside, ctx := errgroup.WithContext(ctx)
	var mu sync.Mutex
	events := 0
	for range followers {
		beside.Go(func() error {
			if err := c.follow(ctx, func(string) bool {
				mu.Lock()
				defer mu.Unlock()
				events++
				return true
			}); ctx.Err() == nil {
				return err
			}
			return nil
		})
	}
	beside.Go(func() error { return c.change(ctx) })
	took := map[string][]time.Duration{}
	used := c.used()
	random := rand.New(rand.NewPCG(seedtest.Seed(t), 0))
	total := int(lasts.Seconds() * rate)
	var requests errgroup.Group
	begin := time.NewTicker(time.Second / rate)
	defer begin.Stop()
	for range total {
		one := kinds[drawn(random, kinds)]
		path := one.path(random)
		due := <-begin.C
		requests.Go(func() error {
			err := c.fetch(ctx, path)
			mu.Lock()
			defer mu.Unlock()
			took[one.name] = append(took[one.name], time.Since(due))
			return err
		})
	}
	if err := requests.Wait(); err != nil {
		t.Error(err)
	}
	used = c.used() - used
	cancel()
	if err := beside.Wait(); err != nil {
		t.Errorf("beside the requests: %v", err)
	}
	if more := byAPI() - asked; more > 0 {
		t.Errorf("%d requests to the console led to %d requests to the API server, want none", total, more)
	}
	if events <= followers {
		t.Errorf("%d followers got %d events", followers, events)
	}
	t.Logf("%s: %d requests in %s, %d a second, %s CPU time each, and %d events to %d followers; memory: %s", name, total, lasts, rate, used/time.Duration(total), events, followers, c.memory())
	var all []time.Duration
	for _, name := range slices.Sorted(maps.Keys(took)) {
		all = append(all, took[name]...)
		t.Logf("%-8s %s", name, quantiles(took[name]))
	}
	t.Logf("%-8s %s", "all", quantiles(all))
	if len(all) != total {
		t.Errorf("%d of %d requests were answered", len(all), total)
	}
}

// drawn draws a kind by its share.
func drawn(r *rand.Rand, kinds []kind) int {
	sum := 0
	for _, k := range kinds {
		sum += k.share
	}
	at := r.IntN(sum)
	return slices.IndexFunc(kinds, func(k kind) bool {
		at -= k.share
		return at < 0
	})
}

// fetch reads an answer in full, and complains unless it has something.
func (c *console) fetch(ctx context.Context, path string) error {
	response, err := c.open(ctx, path)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	whole := strings.Contains(string(body), "</html>")
	if strings.HasPrefix(path, prefix) {
		whole = json.Valid(body)
	}
	if err != nil || response.StatusCode != http.StatusOK || !whole {
		return fmt.Errorf("GET %s: %d, %w: %.300s", path, response.StatusCode, err, body)
	}
	return nil
}

// change makes and deletes an address until ctx ends.
func (c *console) change(ctx context.Context) error {
	const name = "10.1.3.231" // free, in pool-0
	ticker := time.NewTicker(churn)
	defer ticker.Stop()
	for there := false; ; there = !there {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			if !there {
				return nil
			}
			return c.w.Berth.FloatingIPs.Delete(c.w.Ctx, name, metav1.DeleteOptions{})
		}
		var err error
		if there {
			err = c.w.Berth.FloatingIPs.Delete(c.w.Ctx, name, metav1.DeleteOptions{})
		} else {
			_, err = c.w.Berth.FloatingIPs.Create(c.w.Ctx, &v1alpha1.FloatingIP{
				ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.FloatingIPSpec{Address: name, Reserved: true},
			}, metav1.CreateOptions{})
		}
		if err != nil {
			return err
		}
	}
}

func quantiles(times []time.Duration) string {
	slices.Sort(times)
	at := func(q float64) time.Duration {
		return times[int(q*float64(len(times)-1))].Round(100 * time.Microsecond)
	}
	return fmt.Sprintf("%5d requests, p50 %s, p99 %s, longest %s", len(times), at(0.5), at(0.99), at(1))
}

// used returns the CPU time that the process used so far.
func (c *console) used() time.Duration {
	c.w.T.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.PID()))
	if err != nil {
		c.w.T.Fatal(err)
	}
	// The name, in brackets, may have spaces. The times are the 14th and 15th field, in hundredths of
	// a second (proc(5)).
	_, rest, _ := strings.Cut(string(stat), ") ")
	ticks := 0
	for _, field := range strings.Fields(rest)[11:13] {
		n, err := strconv.Atoi(field)
		if err != nil {
			c.w.T.Fatalf("read the CPU time of %q: %v", stat, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// collections are the lines of GODEBUG=gctrace=1: the heap before and after a collection, and what
// of it is alive.
var collections = regexp.MustCompile(`(?m)^gc .* (\d+)->(\d+)->(\d+) MB`)

// memory returns the most memory that the process had so far, and the most of its heap.
func (c *console) memory() string {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.PID()))
	if err != nil {
		return err.Error()
	}
	kilobytes := func(name string) int {
		_, rest, _ := strings.Cut(string(status), name+":")
		n, _ := strconv.Atoi(cmp.Or(strings.Fields(rest)...))
		return n
	}
	log, err := os.ReadFile(c.log)
	if err != nil {
		return err.Error()
	}
	heap, alive := 0, 0
	for _, line := range collections.FindAllSubmatch(log, -1) {
		for i, most := range map[int]*int{1: &heap, 2: &heap, 3: &alive} {
			n, _ := strconv.Atoi(string(line[i]))
			*most = max(*most, n)
		}
	}
	return fmt.Sprintf("%d MB now, at most %d MB (RSS), heap at most %d MB, of it alive %d MB", kilobytes("VmRSS")/1024, kilobytes("VmHWM")/1024, heap, alive)
}
