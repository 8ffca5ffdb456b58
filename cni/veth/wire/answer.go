// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/rtnl"
)

// Answer makes the node answer ARP or neighbour solicitations for an address on the link. The
// kernel does so only while it has a route to the address through another link, host, and Answer
// adds no entry on a link without a carrier. It is for network types that route an address to a
// container in another way. If the node's reverse path filter would drop the requests, they get
// netfilter.ArrivalMark, and the caller has a rule for this mark.
func (w *Wirer) Answer(host, link netlink.Link, a api.Address) error {
	family := rtnl.FamilyOf(a.Address)
	if err := w.forward(host, link, family); err != nil {
		return err
	}
	if err := w.acceptReversePath(link, networkOf(a, link.Attrs())); err != nil {
		return err
	}
	if err := w.answerAtOnce(link, family); err != nil {
		return err
	}
	if err := w.solicited(link, family); err != nil {
		return err
	}
	return proxy{addr: a.Address, link: link.Attrs().Index}.answer()
}

// CheckAnswer returns ErrNotWired or ErrSysctl if the node does not answer for the address on the
// link. Without a carrier nothing is missing, because nobody hears answers.
func (w *Wirer) CheckAnswer(link netlink.Link, a api.Address) error {
	proxies, err := listProxies(rtnl.FamilyOf(a.Address))
	if err == nil && rtnl.HasCarrier(link) && !slices.Contains(proxies, proxy{addr: a.Address, link: link.Attrs().Index}) {
		err = unanswered(a.Address, link)
	}
	return errors.Join(err, w.checkSolicited(link, rtnl.FamilyOf(a.Address)), w.checkReversePath(link, networkOf(a, link.Attrs())))
}

func unanswered(addr netip.Addr, link netlink.Link) error {
	return fmt.Errorf("%w: the node does not answer for %s on %s", ErrNotWired, addr, link.Attrs().Name)
}

// isHostLink reports whether a name is from HostLink. Links of other packages may begin with
// LinkPrefix, too.
func isHostLink(name string) bool {
	digits, ok := strings.CutPrefix(name, LinkPrefix)
	// hex.DecodeString needs an even number of digits, and names of HostLink have 12.
	_, err := hex.DecodeString(digits)
	return ok && err == nil && len(name) == 15
}
