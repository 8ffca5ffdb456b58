// SPDX-License-Identifier: Apache-2.0

package sriov

import (
	"cmp"
	"errors"
	"strings"
	"testing"
)

func TestChoose(t *testing.T) {
	free := func(device, pf string, index int) function {
		return function{device: device, pf: pf, index: index, driver: "igbvf", link: device}
	}
	with := func(f function, change func(*function)) function { change(&f); return f }
	taken := with(free("a0", "eth0", 0), func(f *function) { f.owner = "bthv0" })
	vfio := with(free("a1", "eth0", 1), func(f *function) { f.driver, f.link = "vfio-pci", "" })
	unbound := with(free("a2", "eth0", 2), func(f *function) { f.driver, f.link = "", "" })
	bonded := with(free("a3", "eth0", 3), func(f *function) { f.usedFor = "a bridge or bond" })
	for name, c := range map[string]struct {
		all    []function
		device string
		want   string
		// wrong is in the text of the error, which is ErrNoFunction unless err says another one.
		wrong string
		err   error
	}{
		"lowest free number":         {all: []function{taken, vfio, unbound, bonded, free("a5", "eth0", 5), free("a4", "eth0", 4)}, want: "a4"},
		"card with most free ones":   {all: []function{taken, free("a4", "eth0", 4), free("b0", "eth1", 0), free("b1", "eth1", 1)}, want: "b0"},
		"first card of equal ones":   {all: []function{free("a4", "eth0", 4), free("b0", "eth1", 0)}, want: "a4"},
		"named device":               {all: []function{free("a4", "eth0", 4), free("a5", "eth0", 5)}, device: "a5", want: "a5"},
		"named device in a pod":      {all: []function{taken, free("a4", "eth0", 4)}, device: "a0", wrong: "device a0 is in a pod"},
		"named device with vfio":     {all: []function{vfio}, device: "a1", wrong: "driver vfio-pci"},
		"named device of no card":    {all: []function{free("a4", "eth0", 4)}, device: "ff", wrong: "device ff is none of eth0; correct deviceID", err: ErrDevice},
		"none free":                  {all: []function{taken, vfio, unbound, bonded}, wrong: "of 4, 1 in a pod, 1 used by the node for a bridge or bond, 1 without a driver, 1 without a link on the node (driver vfio-pci)"},
		"no virtual function at all": {wrong: "sriov_numvfs"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := choose(c.all, c.device)
			if c.wrong != "" {
				if want := cmp.Or(c.err, ErrNoFunction); !errors.Is(err, want) || !strings.Contains(err.Error(), c.wrong) {
					t.Errorf("choose() = %v, %v, want %q", got, err, c.wrong)
				}
				return
			}
			if err != nil || got.device != c.want {
				t.Errorf("choose() = %s, %v, want %s", got.device, err, c.want)
			}
		})
	}
}
