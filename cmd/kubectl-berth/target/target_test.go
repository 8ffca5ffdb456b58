// SPDX-License-Identifier: Apache-2.0

package target

import (
	"strings"
	"testing"
)

// What people write, and what kubectl and the commands print, means the same in all commands.
func TestParse(t *testing.T) {
	for _, test := range []struct{ text, bare, want string }{
		// Addresses.
		{"10.0.70.2", "Pod", "10.0.70.2"}, {"::ffff:10.0.70.2", "Pod", "10.0.70.2"}, {"[2001:db8::1]", Addresses, "2001:db8::1"}, {"2001:DB8:0:0::1", Addresses, "2001:db8::1"},
		{"2001-0db8-0000-0000-0000-0000-0000-0001", Addresses, "2001:db8::1"}, {"floatingip.berth.dev/10.0.70.10", "Pod", "10.0.70.10"},
		{"floatingip.berth.dev/2001-0db8-0070-0000-0000-0000-0001-0008", Addresses, "2001:db8:70::1:8"}, {"fip/10.0.70.8", "Pod", "10.0.70.8"},
		// Ranges.
		{"10.0.70.231/30", Addresses, "10.0.70.228-10.0.70.231"}, {"10.0.70.228/30", "Pod", "10.0.70.228-10.0.70.231"}, {"10.0.70.2/32", Addresses, "10.0.70.2"},
		{"2001:db8::7/126", "Pod", "2001:db8::4-2001:db8::7"}, {"[2001:db8::7]/126", "Pod", "2001:db8::4-2001:db8::7"}, {"::ffff:10.0.70.231/126", Addresses, "10.0.70.228-10.0.70.231"},
		{"10.0.70.2-10.0.70.9", Addresses, "10.0.70.2-10.0.70.9"}, {"2001:db8::1-2001:db8::9", "Pod", "2001:db8::1-2001:db8::9"},
		// Objects, with and without namespace, as people write them.
		{"web-0", "Pod", "Pod web-0"}, {"shop/web-0", "Pod", "Pod shop/web-0"}, {"pod/web-0", "Pod", "Pod web-0"}, {"pods/web-0", "IPPool", "Pod web-0"}, {"po/shop/web-0", "Pod", "Pod shop/web-0"},
		{"sts/web", "Pod", "StatefulSet web"}, {"StatefulSet/web", "Pod", "StatefulSet web"}, {"statefulset.apps/web", "Pod", "StatefulSet web"}, {"deploy/shop/web", "Pod", "Deployment shop/web"},
		{"claim/front", "Pod", "IPClaim front"}, {"ipclaim.berth.dev/front", "IPClaim", "IPClaim front"}, {"ads/front", "IPClaim", "IPClaim ads/front"}, {"front", "IPClaim", "IPClaim front"},
		{"svc/front", "Pod", "Service front"}, {"node7", "Node", "Node node7"}, {"node/node7", "Pod", "Node node7"}, {"web", "IPPool", "IPPool web"}, {"ippool.berth.dev/web", "IPPool", "IPPool web"},
		{"fleets.example.dev/web", "Pod", "fleets.example.dev web"}, {"Fleet/web", "Pod", "Fleet web"}, {"Fleet/shop/web", "Pod", "Fleet shop/web"}, {"web-0", Addresses, "Pod web-0"},
		// As the commands print them.
		{"StatefulSet shop/web", "Pod", "StatefulSet shop/web"}, {"Node node7", "Pod", "Node node7"}, {"Fleet shop/web", "Pod", "Fleet shop/web"}, {"pod/web-0 in shop", "Pod", "Pod shop/web-0"},
		{"ippool/web", "Pod", "IPPool web"}, {"pod shop/web-0", Addresses, "Pod shop/web-0"},
	} {
		got, err := Parse(test.text, test.bare)
		if err != nil || got.String() != test.want {
			t.Errorf("%q of %s is %s, %v; want %s", test.text, test.bare, got, err, test.want)
		}
	}
	for _, test := range []struct{ text, bare, want string }{
		{"10.0.70", "Pod", `"10.0.70" is no address: write 10.0.70.2, 10.0.70.0/30 or 2001:db8::1`},
		{"010.0.70.2", Addresses, `"010.0.70.2" is no address: write 10.0.70.2, 10.0.70.0/30 or 2001:db8::1`},
		{"10.0.70.0/33", "Pod", `"10.0.70.0/33" is no address: write 10.0.70.2, 10.0.70.0/30 or 2001:db8::1`},
		{"10.0.70.9-10.0.70.2", "Pod", `range "10.0.70.9-10.0.70.2" is backwards: write 10.0.70.2-10.0.70.9`},
		{"fe80::1%eth0", "Pod", "a floating IP has no zone: write fe80::1"},
		{"floatingip/web", "Pod", `"floatingip/web": "web" is no address: write 10.0.70.2, 10.0.70.0/30 or 2001:db8::1`},
		{"a/b/c", "Pod", `"a/b/c" names nothing: "a" is no kind; write an address, web-0 or shop/web-0, or KIND/NAME such as statefulset/web`},
		{"sts/", "Pod", `"sts/" names nothing: a name is missing; write an address, web-0 or shop/web-0, or KIND/NAME such as statefulset/web`},
		{"", "Pod", `"" names nothing: a name is missing; write an address, web-0 or shop/web-0, or KIND/NAME such as statefulset/web`},
		{"sts/a/b/c", "Pod", `"sts/a/b/c" names nothing: it has too many parts; write an address, web-0 or shop/web-0, or KIND/NAME such as statefulset/web`},
		{"node/shop/node7", "Node", `"node/shop/node7" names nothing: Nodes have no namespace; write node7`},
		{"shop/web", "IPPool", `"shop/web" names nothing: IPPools have no namespace; write web`},
	} {
		if got, err := Parse(test.text, test.bare); err == nil || err.Error() != test.want {
			t.Errorf("%q of %s is %s, and the error\n%v\nwant\n%s", test.text, test.bare, got, err, test.want)
		}
	}
}

// Words of a command line are joined where one is a kind and the next its object, as the commands
// print them.
func TestJoin(t *testing.T) {
	for text, want := range map[string]string{
		"StatefulSet shop/web": "StatefulSet shop/web", "web-0": "web-0", "StatefulSet": "StatefulSet",
		"10.0.70.2 Node node7 claim": "10.0.70.2;Node node7;claim", "claim store": "claim;store",
	} {
		if got := strings.Join(Join(strings.Fields(text)), ";"); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}
