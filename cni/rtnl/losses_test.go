// SPDX-License-Identifier: Apache-2.0

package rtnl_test

import (
	"os"
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/rtnl"
)

// A reader that is too slow is told that it has missed events, and the channel ends: a loss that
// counts may be among them.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	netnstest.Need(t)
	host, missed := netnstest.New(t), make(chan error, 1)
	var losses <-chan int
	host.Run(func() (err error) {
		losses, err = rtnl.Losses(t.Context(), func(err error) { missed <- err })
		return err
	})
	host.Run(func() error {
		for range 400 {
			for _, value := range []string{"1", "0"} {
				if err := os.WriteFile("/proc/sys/net/ipv6/conf/all/proxy_ndp", []byte(value), 0o644); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err := <-missed; err == nil {
		t.Error("the reader is told no reason")
	}
	told := 0
	for range losses {
		told++
	}
	if told == 0 {
		t.Error("the reader is told nothing of before")
	}
}
