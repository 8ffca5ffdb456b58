// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/berth-dev/berth/cni/rtnl"
)

// assumption is a setting of the kernel for each link on which the node answers for addresses.
// Berth changes none of them: whoever set one had a reason.
type assumption struct {
	// family and key name the setting: net/‹family›/conf/‹link›/‹key›.
	family, key string
	// want is the necessary value. If the setting of all links has another value, the setting of the
	// link does not count.
	want      string
	otherwise string
}

var assumptions = []assumption{
	{"ipv4", "proxy_arp", "0", "the node answers there for every address that it has another route to, not for those of its pods alone"},
	{"ipv4", "proxy_arp_pvlan", "0", "the node answers there for every address of the network, not for those of its pods alone"},
	{"ipv4", "arp_evict_nocarrier", "1", "the node answers there after its cable was out for addresses that another node may have by now, until its agent has asked the API server"},
	{"ipv6", "ndisc_evict_nocarrier", "1", "the node answers there after its cable was out for addresses that another node may have by now, until its agent has asked the API server"},
}

// checkAssumed returns ErrSysctl for each setting by which the node would answer for more addresses
// than its pods', on the uplink or on another link on which it answers. Kernels before 5.16 lack
// some of the settings, and behave right.
func (w *Wirer) checkAssumed(uplink string) error {
	links := map[string]bool{uplink: true}
	for _, family := range rtnl.Families {
		answered, err := AnsweredOn(family)
		if err != nil {
			return err
		}
		for _, link := range answered {
			links[link] = true
		}
	}
	delete(links, "") // it went away just now
	var errs []error
	for _, a := range assumptions {
		for _, link := range append([]string{"all"}, slices.Sorted(maps.Keys(links))...) {
			key := "net/" + a.family + "/conf/" + link + "/" + a.key
			have, err := w.Sysctl(key)
			if errors.Is(err, fs.ErrNotExist) {
				break
			}
			if err != nil {
				errs = append(errs, err)
				break
			}
			if have == a.want {
				continue
			}
			errs = append(errs, fmt.Errorf("%w: %s is %s, so %s; run on the node: sysctl -w %s=%s, and change the file in /etc/sysctl.d or the program that sets it to %s",
				ErrSysctl, key, have, a.otherwise, key, a.want, have))
			if link == "all" {
				break
			}
		}
	}
	return errors.Join(errs...)
}
