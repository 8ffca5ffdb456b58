// SPDX-License-Identifier: Apache-2.0

package conflict

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
)

// BenchmarkQuestion is the time to ask for one address on a node with the links of pods.
func BenchmarkQuestion(b *testing.B) {
	for _, pods := range []int{0, 100, 400} {
		b.Run(fmt.Sprintf("pods=%d", pods), func(b *testing.B) {
			netnstest.Need(b)
			node := netnstest.New(b)
			var batch strings.Builder
			batch.WriteString("link add eth0 up type veth peer name cable\nlink set cable up\naddr add 10.0.60.11/24 dev eth0\n")
			for i := range pods {
				fmt.Fprintf(&batch, "link add pod%d up type veth peer name peer%d\nlink set peer%d up\n", i, i, i)
			}
			node.IPBatch(batch.String())
			node.Run(func() error {
				link, err := net.InterfaceByName("eth0")
				if err != nil {
					return err
				}
				a, err := OpenAsker(link.Index, nil)
				if err != nil {
					return err
				}
				for b.Loop() {
					if err := a.Question([]netip.Addr{netip.MustParseAddr(addr4)}); err != nil {
						return err
					}
				}
				return a.Close()
			})
		})
	}
}
