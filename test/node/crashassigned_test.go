// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// pointsOf returns the fault points with one of the prefixes that were passed since the last call,
// twice of a name at most: the agent looks at all addresses again and again.
func (n *node) pointsOf(prefixes ...string) []string {
	n.t.Helper()
	return slices.DeleteFunc(n.points(), func(point string) bool {
		if _, number, _ := strings.Cut(point, " "); number != "1" && number != "2" {
			return true
		}
		return !slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(point, prefix) })
	})
}

// TestCrashAssigned kills the agent after every single side effect of giving its node addresses and
// of taking them. The next agent makes of it all that the node is assigned, and nothing else.
func TestCrashAssigned(t *testing.T) {
	t.Parallel()
	t.Run("services", func(t *testing.T) {
		t.Parallel()
		network := newNetwork(t)
		n := network.newNode(t, "crash-services", "10.0.60.11")
		all := []string{"10.70.24.100", "10.98.0.24", "2001:db8:70::24:100"}
		for _, address := range all {
			recordService(t, address, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: types.UID("1")}})
		}
		since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		n.crashes(all, "service/",
			func() { n.carry(since, all...) },
			func() { n.carry(since) },
			func() error {
				for _, address := range []string{"10.70.24.100", "2001:db8:70::24:100"} {
					if got, want := answeredBy(network.client, address), n.MAC("eth0").String(); got != want {
						return fmt.Errorf("%s is at %q, want %s", address, got, want)
					}
				}
				return nil
			})
	})
	t.Run("node and egress", func(t *testing.T) {
		t.Parallel()
		network := newNetwork(t)
		newWorld(t, network)
		n := network.newNode(t, "crash-egress", "10.0.60.11")
		namespace(t, "crash-leaving", map[string]string{"leave": "crash"})
		const ownAddress = "10.80.24.11"
		pod := n.ordinary("crash-leaving", "crash-leaving")
		n.give(ownAddress)
		egress := egressOf(ownAddress)
		egress[0].Egress.Namespaces.MatchLabels["leave"] = "crash"
		n.assign()
		n.crashes([]string{ownAddress}, "nodeaddress/ egress/",
			func() { n.assign(ownAddress); n.leave(egress) },
			func() { n.leave(nil); n.assign() },
			func() error { return pod.isSeen(farServer, ownAddress, 0) })
	})
}

// crashes kills the agent at each point with one of the prefixes that it passes when the node is
// given the addresses, or they are taken, and looks at the kernel, and whether it serves, after the
// next agent has finished.
func (n *node) crashes(addresses []string, prefixes string, give, take func(), serves func() error) {
	n.t.Helper()
	of := strings.Fields(prefixes)
	given := func() {
		n.t.Helper()
		n.saysCarried(addresses...)
		eventually(n.t, serves)
	}
	before := n.owned()
	n.points()
	give()
	given()
	with, giving := n.owned(), n.pointsOf(of...)
	take()
	n.saysCarried()
	n.becomesIn(n.owned, before)
	// A late look at what was given marks it again.
	taking := slices.DeleteFunc(n.pointsOf(of...), func(point string) bool { return strings.Contains(point, "/mark ") })
	n.t.Logf("giving passes %v, taking %v", giving, taking)
	if len(giving) < 3 || len(taking) < 2 {
		n.t.Fatal("the agent has no fault points")
	}
	for _, point := range giving {
		n.crashAt(point)
		give()
		n.ended("past " + point)
		n.start()
		given()
		n.becomesIn(n.owned, with)
		take()
		n.saysCarried()
		n.becomesIn(n.owned, before)
	}
	for _, point := range taking {
		give()
		given()
		n.becomesIn(n.owned, with)
		n.crashAt(point)
		take()
		n.ended("past " + point)
		n.start()
		n.saysCarried()
		n.becomesIn(n.owned, before)
	}
}

// owned returns the node's addresses, rules and routes, and not the link that the routes of
// Services lead to, which is made anew where an agent died before it was ready.
func (n *node) owned() string {
	return strings.Join(slices.DeleteFunc(strings.Split(n.own(), "\n"), func(line string) bool { return strings.Contains(line, ": bthservices") }), "\n")
}
