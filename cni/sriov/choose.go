// SPDX-License-Identifier: Apache-2.0

package sriov

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

var (
	// ErrNoFunction is returned if no virtual function, or not the named device, is available for a
	// container now. This may change when another container ends, or after a change by the node's
	// operator.
	ErrNoFunction = errors.New("no virtual function is free")
	// ErrDevice is returned if the named device is no virtual function of the physical functions.
	ErrDevice = errors.New("no such virtual function")
)

// function is the present state of a virtual function.
type function struct {
	// device is its PCI address.
	device string
	// pf is the link of its physical function; index is its number there.
	pf    string
	index int
	// driver is the kernel's driver of the device, empty for none.
	driver string
	// link is its link on the node, empty if there is none.
	link string
	// usedFor names the node's use of the link, empty for none.
	usedFor string
	// owner has claimed it; empty for none.
	owner string
}

// obstacle returns why a container cannot have the function, empty if it can.
func (f function) obstacle() string {
	switch {
	case f.owner != "":
		return "in a pod"
	case f.driver == "":
		return "without a driver"
	case f.link == "":
		return fmt.Sprintf("without a link on the node (driver %s)", f.driver)
	case f.usedFor != "":
		return "used by the node for " + f.usedFor
	}
	return ""
}

// choose returns the function for a container: device if it is not empty. Otherwise it takes the
// physical function with the most free functions, so that the cards share the load, and its free
// function with the lowest number.
func choose(all []function, device string) (function, error) {
	if device != "" {
		i := slices.IndexFunc(all, func(f function) bool { return f.device == device })
		if i < 0 {
			return function{}, fmt.Errorf("%w: device %s is none of %s; correct deviceID or physicalFunctions", ErrDevice, device, strings.Join(pfsOf(all), ", "))
		}
		if why := all[i].obstacle(); why != "" {
			return function{}, fmt.Errorf("%w: device %s is %s", ErrNoFunction, device, why)
		}
		return all[i], nil
	}
	free := map[string][]function{}
	why := map[string]int{}
	for _, f := range all {
		if o := f.obstacle(); o != "" {
			why[o]++
		} else {
			free[f.pf] = append(free[f.pf], f)
		}
	}
	var best []function
	for _, pf := range pfsOf(all) {
		if len(free[pf]) > len(best) {
			best = free[pf]
		}
	}
	if len(best) == 0 {
		return function{}, fmt.Errorf("%w: %s", ErrNoFunction, explain(len(all), why))
	}
	return slices.MinFunc(best, func(a, b function) int { return a.index - b.index }), nil
}

func explain(n int, why map[string]int) string {
	if n == 0 {
		return "the physical functions have none; write their number to /sys/class/net/LINK/device/sriov_numvfs"
	}
	var parts []string
	for o, n := range why {
		parts = append(parts, fmt.Sprintf("%d %s", n, o))
	}
	slices.Sort(parts)
	return fmt.Sprintf("of %d, %s; make more of them, or move pods to other nodes", n, strings.Join(parts, ", "))
}

func pfsOf(all []function) []string {
	var names []string
	for _, f := range all {
		if !slices.Contains(names, f.pf) {
			names = append(names, f.pf)
		}
	}
	return names
}
