// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/rtnl"
)

// keepRouters lets the node keep the routes and addresses from router advertisements when it starts
// to forward IPv6: a router heeds advertisements only on links with accept_ra 2. It changes the
// uplink, and links with such routes or addresses; pods' links have no router.
func (w *Wirer) keepRouters(uplink string) error {
	links, err := rtnl.Links()
	if err != nil {
		return err
	}
	routes, err := rtnl.Dump(func() ([][]byte, error) { return dumpRoutes(unix.AF_INET6, unix.RTPROT_RA) })
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	learned := map[int]bool{}
	for _, m := range routes {
		if r, ok := parseRoute(m, unix.RTPROT_RA); ok {
			learned[r.link] = true
		}
	}
	addrs, err := rtnl.Addresses(nil, unix.AF_INET6)
	if err != nil {
		return err
	}
	for _, a := range addrs {
		// The address has a lifetime, as from router advertisements.
		if a.Flags&unix.IFA_F_PERMANENT == 0 {
			learned[a.LinkIndex] = true
		}
	}
	for _, link := range links {
		name := link.Attrs().Name
		if strings.HasPrefix(name, LinkPrefix) || name != uplink && !learned[link.Attrs().Index] {
			continue
		}
		if err := w.heedAdvertisements(name); err != nil {
			return err
		}
	}
	return nil
}

// heedAdvertisements makes a link that heeds router advertisements continue to do so when the node
// forwards.
func (w *Wirer) heedAdvertisements(link string) error {
	for key, want := range map[string]string{"accept_ra": "1", "forwarding": "0"} {
		have, err := w.Sysctl("net/ipv6/conf/" + link + "/" + key)
		if err != nil || have != want {
			return err
		}
	}
	return w.SetOfNode("net/ipv6/conf/"+link+"/accept_ra", "2")
}
