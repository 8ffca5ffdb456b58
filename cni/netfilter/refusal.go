// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/berth-dev/berth/cni/nftables"
)

// ErrRefused is returned if the firewall of another program refuses all packets that the node
// forwards to or from pods, and rules of ours would not help.
var ErrRefused = errors.New("the node's firewall refuses packets of pods")

// FirewalldCommands lets firewalld forward packets to and from pods.
const FirewalldCommands = `firewall-cmd --permanent --new-zone=berth
firewall-cmd --permanent --zone=berth --set-target=ACCEPT
firewall-cmd --permanent --zone=berth --add-interface=bth+
firewall-cmd --permanent --new-policy=berth-pods
firewall-cmd --permanent --policy=berth-pods --add-ingress-zone=ANY
firewall-cmd --permanent --policy=berth-pods --add-egress-zone=berth
firewall-cmd --permanent --policy=berth-pods --set-target=ACCEPT
firewall-cmd --reload`

// podLink is the name of a link that might lead to a pod.
const podLink = LinkPrefix + "0"

// Firewall looks for refusals, and again only after a change of the kernel's nftables. Methods are
// safe in parallel.
type Firewall struct {
	mu sync.Mutex
	// at, uplink and answer are from the last look; at is the zero Moment if the kernel does not show
	// it.
	at     nftables.Moment
	uplink string
	answer error
}

// Check returns ErrRefused, with the remedy, if no packet can come from the uplink to a pod or go
// from a pod to the uplink. It blocks for the kernel.
func (f *Firewall) Check(uplink string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	now, known := nftables.Now()
	if known && now == f.at && uplink == f.uplink {
		return f.answer
	}
	err := checkRefused(uplink)
	f.at = nftables.Moment{}
	if known && (err == nil || errors.Is(err, ErrRefused)) {
		f.at, f.uplink, f.answer = now, uplink, err
	}
	return err
}

func checkRefused(uplink string) error {
	chains, err := nftables.BaseChains(nftables.Forward)
	if err != nil {
		return err
	}
	for _, c := range chains {
		if strings.HasPrefix(c.Table.Name, TablePrefix) || !isRouted(c.Table.Family) {
			continue
		}
		for _, way := range []struct {
			text    string
			passage nftables.Passage
		}{
			{"to pods", nftables.Passage{In: uplink, Out: podLink, Unnamed: choosesZone(c.Table)}},
			{"from pods", nftables.Passage{In: podLink, Out: uplink, Unnamed: choosesZone(c.Table)}},
		} {
			refusal, err := c.Refuses(way.passage)
			if err != nil {
				return err
			}
			// At the end of a base chain acceptForwarded helps.
			if refusal != nil && (c.Owned || !refusal.Base) {
				return fmt.Errorf("%w: chain %s of nftables table %s %s refuses what the node forwards %s; %s",
					ErrRefused, refusal.Chain, refusal.Table.Family, refusal.Table.Name, way.text, remedy(refusal.Table.Name))
			}
		}
	}
	return nil
}

// choosesZone returns which chains of a table choose a zone, if the table is firewalld's. On nodes
// of a cluster, pods and nodes are sources of the zone trusted. So the sources of a zone do not
// show which hosts may reach floating IPs.
func choosesZone(table nftables.Table) func(chain string) bool {
	return func(chain string) bool {
		return table.Name == firewalldTable && strings.HasPrefix(chain, "filter_FORWARD")
	}
}

const firewalldTable = "firewalld"

func remedy(table string) string {
	if table == firewalldTable {
		return "run on the node: " + strings.ReplaceAll(FirewalldCommands, "\n", " && ")
	}
	return "let the owner of the table accept packets from and to interfaces whose names begin with " + LinkPrefix
}
