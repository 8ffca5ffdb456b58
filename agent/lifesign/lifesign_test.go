// SPDX-License-Identifier: Apache-2.0

package lifesign_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"

	. "github.com/berth-dev/berth/agent/lifesign"
)

// An answer by HTTPS is a sign of the agent, whatever it says. A connection is none: the kernel
// accepts it for a process that hangs.
func TestAgent(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()
	hung, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer hung.Close()
	for listener, want := range map[net.Listener]Signs{server.Listener: {Kernel: true, Agent: true}, hung: {Kernel: true}} {
		if got := Look(t.Context(), []netip.Addr{netip.MustParseAddr("127.0.0.1")}, listener.Addr().(*net.TCPAddr).Port); got != want {
			t.Errorf("Look() = %+v, want %+v", got, want)
		}
	}
}

// lookAt has this program look for signs, in a namespace.
const lookAt = "BERTH_TEST_LOOK_AT"

func TestMain(m *testing.M) {
	hosts, is := os.LookupEnv(lookAt)
	if !is {
		os.Exit(m.Run())
	}
	var addrs []netip.Addr
	for host := range strings.FieldsSeq(hosts) {
		addrs = append(addrs, netip.MustParseAddr(host))
	}
	fmt.Printf("%+v", Look(context.Background(), addrs, 10265))
}

// A kernel that answers anything is a sign, at one address of several, and nobody's silence is
// none.
func TestKernel(t *testing.T) {
	t.Parallel()
	netnstest.Need(t)
	const kernel, none = "{Kernel:true Agent:false}", "{Kernel:false Agent:false}"
	for _, c := range []struct{ name, drops, at, want string }{
		{"all", "", "10.0.60.11", kernel},
		{"IPv6", "", "2001:db8:60::11", kernel},
		{"pings only", "meta l4proto tcp", "10.0.60.11", kernel},
		{"pings by IPv6 only", "meta l4proto tcp", "2001:db8:60::11", kernel},
		{"refusals only", "icmp type echo-request", "10.0.60.11", kernel},
		{"nothing", "ip daddr 10.0.60.11", "10.0.60.11", none},
		{"at another address", "ip daddr 10.0.60.11", "10.0.60.11 2001:db8:60::11", kernel},
		{"nobody", "", "10.0.60.99", none},
		{"no route", "", "10.9.9.9", none},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, witness, node := netnstest.NewWire(t), netnstest.New(t), netnstest.New(t)
			w.Plug(witness, "eth0", netip.MustParsePrefix("10.0.60.12/24"), netip.MustParsePrefix("2001:db8:60::12/64"))
			w.Plug(node, "eth0", netip.MustParsePrefix("10.0.60.11/24"), netip.MustParsePrefix("2001:db8:60::11/64"))
			node.Ping("10.0.60.12")
			node.Ping("2001:db8:60::12")
			if c.drops != "" {
				rule := "add table inet t; add chain inet t c { type filter hook input priority 0; }; add rule inet t c " + c.drops + " drop"
				if out, err := node.Command("nft", rule); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
			}
			var out []byte
			err := witness.Try(func() (err error) {
				cmd := exec.Command(os.Args[0])
				cmd.Env = append(os.Environ(), lookAt+"="+c.at)
				out, err = cmd.CombinedOutput()
				return err
			})
			if err != nil || string(out) != c.want {
				t.Errorf("Look(%s) = %s, %v, want %s", c.at, out, err, c.want)
			}
		})
	}
}
