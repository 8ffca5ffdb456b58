// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"testing"
)

// A survey of many pods reads the kernel as often as one of a pod, and finds the same things
// missing as a check of each pod.
func TestSurvey(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	var pods []*pod
	for i := range 6 {
		p := w.pod(fmt.Sprint("p", i), fmt.Sprintf("10.0.70.%d", 5+i), fmt.Sprintf("2001:db8:70::%d", 5+i))
		setup(w.nodeA, p)
		pods = append(pods, p)
	}
	for number, want := range map[int]int{1: 7, len(pods): 7} {
		s := newSurvey()
		w.nodeA.Run(func() error {
			for _, p := range pods[:number] {
				host, err := upHostEnd(p.spec)
				if err == nil {
					err = New("").checkNode(s, p.spec, host)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
		// Routing, proxy entries and neighbours of two families, and addresses.
		if s.lists != want {
			t.Errorf("a survey of %d pods reads %d lists, want %d", number, s.lists, want)
		}
	}
	w.nodeA.IP("route", "del", "10.0.70.6")
	w.nodeA.IP("neigh", "del", "proxy", "10.0.70.7", "dev", "eth0")
	w.nodeA.IP("-6", "neigh", "del", "2001:db8:70::8", "dev", pods[3].spec.HostLink())
	w.nodeA.IP("link", "set", pods[4].spec.HostLink(), "down")
	w.nodeA.Run(func() error {
		check := New("").Survey()
		for i, p := range pods {
			whole := i == 0 || i == len(pods)-1
			if err := check(p.spec); (err == nil) != whole || !whole && !errors.Is(err, ErrNotWired) {
				t.Errorf("the survey says of pod %d: %v", i, err)
			}
			if err := New("").CheckNode(p.spec); (err == nil) != whole {
				t.Errorf("CheckNode says of pod %d: %v", i, err)
			}
		}
		return nil
	})
}
