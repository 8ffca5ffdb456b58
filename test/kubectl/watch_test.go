// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"bytes"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/simulation"
)

// watching is a command with -w that runs.
type watching struct {
	w       *simulation.World
	what    string
	command *exec.Cmd
	errors  bytes.Buffer

	mu  sync.Mutex
	out bytes.Buffer
}

func (f *watching) Write(text []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.out.Write(text)
}

func (f *watching) printed() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.out.String()
}

// follow starts a command.
func follow(w *simulation.World, args ...string) *watching {
	w.T.Helper()
	u := newUser(w, "")
	f := &watching{w: w, what: strings.Join(args, " "), command: exec.CommandContext(w.Ctx, u.bin, append([]string{"berth"}, args...)...)}
	f.command.Env, f.command.Stdout, f.command.Stderr = u.env, f, &f.errors
	if err := f.command.Start(); err != nil {
		w.T.Fatal(err)
	}
	return f
}

// says waits until the output has lines that match these, in this order, and no other.
func (f *watching) says(lines ...string) {
	f.w.T.Helper()
	f.w.Eventually("wait for kubectl berth "+f.what, func() error {
		got := strings.Split(strings.TrimSuffix(f.printed(), "\n"), "\n")
		if len(got) != len(lines) {
			return fmt.Errorf("it printed %q", got)
		}
		for i, line := range lines {
			if !regexp.MustCompile("^" + line + "$").MatchString(got[i]) {
				return fmt.Errorf("line %q does not match %q", got[i], line)
			}
		}
		return nil
	})
}

// ends interrupts the command, as a user does.
func (f *watching) ends() {
	f.w.T.Helper()
	if err := f.command.Process.Signal(syscall.SIGINT); err != nil {
		f.w.T.Fatal(err)
	}
	if err := f.command.Wait(); err != nil {
		f.w.T.Errorf("%s: %v: %s", f.what, err, &f.errors)
	}
}

// The life of an address, as those see it who follow it with -w.
func TestWatch(t *testing.T) {
	t.Parallel()
	w := simulation.NewWith(t, simulation.Options{Patience: time.Minute})
	pool := w.Pool("web", "10.0.70.10-10.0.70.19")
	// An object of that name, although no address belongs to it yet.
	if _, err := w.Kube.AppsV1().StatefulSets(simulation.Namespace).Create(w.Ctx, simulation.NewSet("web", 0), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	who := follow(w, "who", "10.0.70.10", "-w")
	where := follow(w, "where", "sts/web", "-w", "--no-headers")
	pools := follow(w, "pool", "-w")
	documents := follow(w, "who", "10.0.70.10", "-w", "-o", "yaml")

	header := "ADDRESS +STATE +POOL +POD +NODE +OWNER +SINCE +NOTE"
	free := "10.0.70.10 +Free +web +- +- +- +- +nobody has it; IPPool web can give it to a pod"
	columns := "NAME +SUBNET +CAPACITY +HELD .*"
	none := "web +10.0.70.0/24 +0 +0 .*"
	who.says(header, free)
	pools.says(columns, none)
	documents.says("apiVersion: .*", "items:", "- address: 10.0.70.10", "  note: .*", "  pool: web", "  state: Free", "kind: AddressList")

	since := metav1.Now()
	ip := &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: "10.0.70.10"}, Spec: v1alpha1.FloatingIPSpec{
		Address: "10.0.70.10", Pool: "web", Node: "node1", ReleasePolicy: v1alpha1.ReleaseRetain, Since: &since,
		Owner: &v1alpha1.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: "default", Name: "web", UID: "set", PodName: "web-0"},
		Pod:   &v1alpha1.PodReference{Name: "web-0", UID: "pod"},
	}}
	if _, err := w.Berth.FloatingIPs.Create(w.Ctx, ip, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	held := `10.0.70.10 +Held +web +default/web-0 +node1 +StatefulSet default/web +\d+s +-`
	who.says(header, free, held)
	where.says(held)
	names := follow(w, "where", "web-0", "-w", "-o", "name")
	name := "floatingip.berth.dev/10.0.70.10"
	names.says(name)

	patch := func(text string, under ...string) {
		t.Helper()
		if _, err := w.AsController().FloatingIPs.Patch(w.Ctx, "10.0.70.10", types.MergePatchType, []byte(text), metav1.PatchOptions{}, under...); err != nil {
			t.Fatal(err)
		}
	}
	patch(`{"spec":{"pod":null,"node":null,"lastPod":"web-0"}}`)
	retained := `10.0.70.10 +Retained +web +- +- +StatefulSet default/web +\S+ +-`
	who.says(header, free, held, retained)
	where.says(held, retained)
	names.says(name, name)

	pool.Status = v1alpha1.IPPoolStatus{Capacity: 10, Retained: 1, Free: 9}
	if _, err := w.Berth.IPPools.UpdateStatus(w.Ctx, pool, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	pools.says(columns, none, "web +10.0.70.0/24 +10 +0 +1 +9 .*")

	if err := w.Berth.FloatingIPs.Delete(w.Ctx, "10.0.70.10", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	who.says(header, free, held, retained, free)
	where.says(held, retained, "10.0.70.10 +Deleted +web .* it is no longer StatefulSet default/web's")

	w.Eventually("wait for the documents", func() error {
		all := strings.Split(documents.printed(), "---\n")
		if len(all) != 4 {
			return fmt.Errorf("there are %d: %s", len(all), documents.printed())
		}
		for i, state := range []string{"Free", "Held", "Retained", "Free"} {
			var list struct{ Items []struct{ State string } }
			if err := yaml.Unmarshal([]byte(all[i]), &list); err != nil || len(list.Items) != 1 || list.Items[0].State != state {
				return fmt.Errorf("document %d: %w: %s", i, err, all[i])
			}
		}
		return nil
	})
	for _, each := range []*watching{who, where, names, pools, documents} {
		each.ends()
	}
}
