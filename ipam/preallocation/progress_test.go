// SPDX-License-Identifier: Apache-2.0

package preallocation

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
)

// shelf has a number of addresses of each family.
type shelf struct {
	Count
	asked []string // the family and count of each call
	fails error
}

func (s *shelf) Preallocate(ctx context.Context, request ipam.Request, count int, confirm func(context.Context) error) (int, error) {
	family := request.Parts[0].Family
	s.asked = append(s.asked, fmt.Sprintf("%d %s", count, family))
	made := min(count, s.Count[family])
	for range made {
		if err := confirm(ctx); err != nil {
			return 0, err
		}
	}
	s.Count[family] -= made
	if made < count && s.fails != nil {
		return made, s.fails
	}
	if made < count {
		return made, &ipam.ShortageError{Reasons: []string{"none is free"}}
	}
	return made, nil
}

// owner takes addresses with a Progress.
type owner struct {
	t *testing.T
	Progress
	shelf
	goal Goal
	has  Count
	// waits is what it waits for, in words.
	waits []string
}

func newOwner(t *testing.T, free Count, wants ...Want) *owner {
	o := &owner{t: t, shelf: shelf{Count: free}, has: Count{}}
	o.goal = Goal{Generation: 1, Wants: wants, Confirm: func(context.Context) error { return nil }}
	return o
}

func wanting(family v1alpha1.IPFamily, size, has int) Want {
	w := Want{Size: size, Has: has}
	w.Request.Parts = []ipam.Part{{Family: family}}
	return w
}

// take describes the result as "reason: message, again".
func (o *owner) take() string {
	o.t.Helper()
	snapshot := pools.Compile([]*v1alpha1.IPPool{
		{ObjectMeta: metav1.ObjectMeta{Name: "four"}, Spec: v1alpha1.IPPoolSpec{Subnet: "10.0.0.0/24", Ranges: []string{"10.0.0.0/24"}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "six"}, Spec: v1alpha1.IPPoolSpec{Subnet: "fd00::/64", Ranges: []string{"fd00::/120"}}},
	})
	by := taker{Preallocator: &o.shelf, Pools: func() *pools.Snapshot { return snapshot }, End: o.wait,
		Begin: func(requests []ipam.Request) { o.wait(requests, false) }}
	problem, again, err := o.Progress.take(o.t.Context(), by, o.goal, o.has)
	switch {
	case err != nil:
		return err.Error()
	case problem == nil:
		return fmt.Sprint(again)
	}
	return fmt.Sprintf("%s: %s, %v", problem.Reason, problem.Message, again)
}

func (o *owner) wait(requests []ipam.Request, got bool) {
	var words []string
	for i := range requests {
		words = append(words, string(requests[i].Parts[0].Family))
	}
	if got {
		words = append(words, "after some")
	}
	o.waits = append(o.waits, strings.Join(words, " "))
}

func TestTake(t *testing.T) {
	for _, test := range []struct {
		name  string
		free  Count
		wants []Want
		want  string
		asked string
		// waits is what it waits for before the attempt, and after it.
		waits []string
	}{
		{"nothing is missing", nil, []Want{wanting(v1alpha1.IPv4, 2, 2)}, "0s", "", []string{"", ""}},
		{"more than wanted", nil, []Want{wanting(v1alpha1.IPv4, 2, 3)}, "0s", "", []string{"", ""}},
		{"some", Count{v1alpha1.IPv4: 9}, []Want{wanting(v1alpha1.IPv4, 3, 1)}, "Preallocating: 1 of 3 IPv4 addresses., 100ms", "2 IPv4", []string{"IPv4", "after some"}},
		{"a portion", Count{v1alpha1.IPv4: 99}, []Want{wanting(v1alpha1.IPv4, 99, 1)}, "Preallocating: 1 of 99 IPv4 addresses., 100ms", "64 IPv4", []string{"IPv4", "after some"}},
		// It may be due to a book that is behind.
		{"a first shortage", Count{}, []Want{wanting(v1alpha1.IPv4, 3, 1)}, "Preallocating: 1 of 3 IPv4 addresses., 1s", "2 IPv4", []string{"IPv4", "IPv4"}},
		{"one family is complete", Count{v1alpha1.IPv6: 9}, []Want{wanting(v1alpha1.IPv4, 2, 2), wanting(v1alpha1.IPv6, 2, 1)}, "Preallocating: 1 of 2 IPv6 addresses., 100ms", "1 IPv6", []string{"IPv6", "after some"}},
		{"too few of one family", Count{v1alpha1.IPv4: 1, v1alpha1.IPv6: 9}, []Want{wanting(v1alpha1.IPv4, 2, 0), wanting(v1alpha1.IPv6, 2, 1)}, "Preallocating: 0 of 2 IPv4 addresses.; 1 of 2 IPv6 addresses., 1s", "2 IPv4, 1 IPv6", []string{"IPv4 IPv6", "IPv4 after some"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := newOwner(t, test.free, test.wants...)
			if got := o.take(); got != test.want {
				t.Errorf("it returns %q, want %q", got, test.want)
			}
			if got := strings.Join(o.asked, ", "); got != test.asked {
				t.Errorf("it asked for %q, want %q", got, test.asked)
			}
			if diff := cmp.Diff(test.waits, o.waits); diff != "" {
				t.Errorf("it waits for: %s", diff)
			}
		})
	}
}

// One portion follows another without a pause.
func TestTakePortions(t *testing.T) {
	o := newOwner(t, Count{v1alpha1.IPv4: 200}, wanting(v1alpha1.IPv4, 130, 0))
	for _, has := range []int{0, 64, 128, 130} {
		o.goal.Wants[0].Has = has
		o.take()
	}
	if diff := cmp.Diff([]string{"64 IPv4", "64 IPv4", "2 IPv4"}, o.asked); diff != "" {
		t.Errorf("it asked: %s", diff)
	}
}

// Of several failures in a row the second is shown, and each is followed by a longer pause.
func TestTakeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOwner(t, Count{}, wanting(v1alpha1.IPv4, 3, 1))
		first := o.take()
		const short = "PoolsExhausted: 1 of 3 IPv4 addresses: none is free, "
		if want := "Preallocating: 1 of 3 IPv4 addresses., 1s"; first != want {
			t.Errorf("at first it returns %q, want %q", first, want)
		}
		for _, seconds := range []int{2, 4, 8, 16, 32, 60, 60, 60, 60, 60, 60} {
			<-time.After(Interval - 1)
			tries := len(o.asked)
			if got := o.take(); len(o.asked) != tries || !strings.HasSuffix(got, ", 1ns") {
				t.Errorf("less than %v after an attempt: %q", Interval, got)
			}
			<-time.After(1)
			if got, want := o.take(), short+(time.Duration(seconds)*time.Second).String(); got != want {
				t.Errorf("it returns %q, want %q", got, want)
			}
		}
		// One address is enough to begin anew, but the shortage remains shown.
		<-time.After(Interval)
		o.Count[v1alpha1.IPv4] = 1
		if got, want := o.take(), "PoolsExhausted: 2 of 3 IPv4 addresses: none is free, 1s"; got != want {
			t.Errorf("after an address it returns %q, want %q", got, want)
		}
		// So does another generation, at once.
		o.goal.Generation++
		if got := o.take(); got != first {
			t.Errorf("for another generation it returns %q, want %q", got, first)
		}
		<-time.After(Interval)
		o.fails = errors.New("no")
		if got, want := o.take(), "PreallocationFailed: 1 of 3 IPv4 addresses: no, 2s"; got != want {
			t.Errorf("after an error it returns %q, want %q", got, want)
		}
		if last := o.waits[len(o.waits)-1]; last != "" {
			t.Errorf("after an error it waits for %q, which does not help", last)
		}
		<-time.After(Interval)
		o.goal.Wants[0].Has = 3
		if got := o.take(); got != "0s" || o.waits[len(o.waits)-1] != "" {
			t.Errorf("when it is complete it returns %q and waits for %q", got, o.waits)
		}
	})
}

// A want that no pool serves is shown at once.
func TestTakeWithoutPool(t *testing.T) {
	want := wanting(v1alpha1.IPv4, 3, 1)
	want.Request.Pools = []string{"none"}
	o := newOwner(t, Count{v1alpha1.IPv6: 9}, want, wanting(v1alpha1.IPv6, 1, 0))
	if got := o.take(); !strings.HasPrefix(got, `NoSuchPool: 1 of 3 IPv4 addresses: there is no IPPool "none"`) || !strings.HasSuffix(got, ", 1s") {
		t.Errorf("it returns %q", got)
	}
	if diff := cmp.Diff([]string{"1 IPv6"}, o.asked); diff != "" {
		t.Errorf("it asked: %s", diff)
	}
}

// Nothing is taken for an owner that changed, and one question is enough.
func TestTakeAsks(t *testing.T) {
	o := newOwner(t, Count{v1alpha1.IPv4: 9, v1alpha1.IPv6: 9}, wanting(v1alpha1.IPv4, 2, 0), wanting(v1alpha1.IPv6, 2, 0))
	asked := 0
	var answer error
	o.goal.Confirm = func(context.Context) error { asked++; return answer }
	answer = errors.New("it is gone")
	if got := o.take(); got != "it is gone" || o.Total() != 18 {
		t.Errorf("it returns %q and leaves %v", got, o.Count)
	}
	if diff := cmp.Diff([]string{"IPv4 IPv6", ""}, o.waits); diff != "" {
		t.Errorf("it waits for: %s", diff)
	}
	answer = nil
	if got := o.take(); asked != 2 || o.Total() != 14 {
		t.Errorf("it returns %q, asked %d times and leaves %v", got, asked, o.Count)
	}
}

// It waits for its new addresses until the watch brings them, but no longer than five
// seconds.
func TestUnsettled(t *testing.T) {
	for _, test := range []struct {
		name  string
		has   Count
		after time.Duration
		want  time.Duration
	}{
		{"nothing came", Count{v1alpha1.IPv4: 1}, time.Second, 4 * time.Second},
		{"one family came", Count{v1alpha1.IPv4: 3}, time.Second, 4 * time.Second},
		{"all came", Count{v1alpha1.IPv4: 3, v1alpha1.IPv6: 2}, time.Second, 0},
		{"nothing came for long", Count{v1alpha1.IPv4: 1}, settling, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newOwner(t, Count{v1alpha1.IPv4: 2, v1alpha1.IPv6: 2}, wanting(v1alpha1.IPv4, 3, 1), wanting(v1alpha1.IPv6, 2, 0))
				o.has = Count{v1alpha1.IPv4: 1}
				o.take()
				<-time.After(test.after)
				if got := o.Unsettled(test.has, time.Now()); got != test.want {
					t.Errorf("it waits %v, want %v", got, test.want)
				}
				if got := o.Unsettled(Count{}, time.Now()); test.want == 0 && got != 0 {
					t.Errorf("once settled it waits %v", got)
				}
			})
		})
	}
}
