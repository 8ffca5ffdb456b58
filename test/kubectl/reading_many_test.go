// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/test/simulation"
)

// How long the commands take, and how much memory, with BERTH_TEST_KUBECTL_ADDRESSES
// addresses in pools of 1,000. It reports, and judges nothing.
func TestReadingMany(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv("BERTH_TEST_KUBECTL_ADDRESSES"))
	if n == 0 {
		t.Skip("set BERTH_TEST_KUBECTL_ADDRESSES, as make test-reading-many does")
	}
	w := simulation.NewWith(t, simulation.Options{Lasts: time.Hour})
	began := time.Now()
	createHeld(w, n)
	t.Logf("created %d addresses in %s", n, time.Since(began).Round(time.Second))
	user := newUser(w, "")
	for _, args := range [][]string{
		{"who", "10.1.0.7"}, {"who", "10.1.3.255"}, {"where", "sts/web-3"}, {"pool"}, {"pool", "pool-7"}, {"free", "pool-7"},
		{"top", "owners"}, {"export"},
	} {
		var took []time.Duration
		var memory int64
		for range 5 {
			command := exec.CommandContext(w.Ctx, user.bin, append([]string{"berth"}, args...)...)
			command.Env = user.env
			began := time.Now()
			output, err := command.Output()
			took = append(took, time.Since(began))
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				t.Fatalf("%v: %v: %s", args, err, exit.Stderr)
			}
			if err != nil || len(output) == 0 {
				t.Fatalf("%v: %v, printed %d bytes", args, err, len(output))
			}
			memory = max(memory, command.ProcessState.SysUsage().(*syscall.Rusage).Maxrss)
		}
		slices.Sort(took)
		t.Logf("%-16s median %s, longest %s, memory %d MB", strings.Join(args, " "), took[2].Round(time.Millisecond), took[4].Round(time.Millisecond), memory/1024)
	}
}

// createHeld makes pools of 1,000 addresses, 900 of which are held.
func createHeld(w *simulation.World, n int) {
	w.T.Helper()
	// It may create as fast as the API server can.
	config := *w.Config
	config.QPS = -1
	berth, err := client.NewForConfig(&config)
	if err != nil {
		w.T.Fatal(err)
	}
	since := metav1.Now()
	work := make(chan *v1alpha1.FloatingIP)
	var group sync.WaitGroup
	for range 32 {
		group.Go(func() {
			for ip := range work {
				if _, err := berth.FloatingIPs.Create(w.Ctx, ip, metav1.CreateOptions{}); err != nil {
					w.Abort("create FloatingIP %s: %w", ip.Name, err)
				}
			}
		})
	}
	for made := 0; made < n && w.Ctx.Err() == nil; {
		number := made / 900
		subnet := netip.AddrFrom4([4]byte{10, byte(1 + number/64), byte(number % 64 * 4), 0})
		name := fmt.Sprintf("pool-%d", number)
		pool := simulation.NewPool(name, fmt.Sprintf("%s-%s", subnet.Next(), netip.AddrFrom4([4]byte{10, subnet.As4()[1], subnet.As4()[2] + 3, 232})))
		pool.Spec.Subnet, pool.Spec.Gateway = subnet.String()+"/22", ""
		if _, err := berth.IPPools.Create(w.Ctx, pool, metav1.CreateOptions{}); err != nil {
			w.T.Fatal(err)
		}
		addr := subnet
		for i := range min(900, n-made) {
			addr = addr.Next()
			work <- &v1alpha1.FloatingIP{
				ObjectMeta: metav1.ObjectMeta{Name: addr.String()},
				Spec: v1alpha1.FloatingIPSpec{
					Address: addr.String(), Pool: name, Node: fmt.Sprintf("node-%d", i%200), ReleasePolicy: v1alpha1.ReleaseRetain, Since: &since,
					Network: &v1alpha1.Network{Subnet: pool.Spec.Subnet},
					Owner:   &v1alpha1.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: simulation.Namespace, Name: fmt.Sprintf("web-%d", number), UID: "u", PodName: fmt.Sprintf("web-%d-%d", number, i)},
					Pod:     &v1alpha1.PodReference{Name: fmt.Sprintf("web-%d-%d", number, i), UID: "p"},
				},
			}
			made++
		}
	}
	close(work)
	group.Wait()
}
