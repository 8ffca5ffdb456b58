// SPDX-License-Identifier: Apache-2.0

// Berth-cni is the CNI plugin that the container runtime calls. It passes each
// call to the node agent over the agent's socket and prints the answer. It makes no
// decision and changes nothing, so an upgrade can replace it at any time.
package main

import (
	"log"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"
)

func main() {
	e := skel.PluginMainFuncsWithError(skel.CNIFuncs{
		Add:    add,
		Del:    forward("DEL"),
		Check:  forward("CHECK"),
		GC:     forward("GC"),
		Status: status,
	}, version.PluginSupports("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"), "CNI plugin berth-cni")
	if e == nil {
		return
	}
	if err := withVariable(e, os.Getenv).Print(); err != nil {
		log.Print("Cannot write the error to standard output: ", err)
	}
	os.Exit(1)
}

// withVariable puts the name of the invalid variable into CNI's own error, as the
// specification demands.
func withVariable(e *types.Error, getenv func(string) string) *types.Error {
	for name, validate := range map[string]func(string) *types.Error{
		"CNI_CONTAINERID": utils.ValidateContainerID, "CNI_IFNAME": utils.ValidateInterfaceName,
	} {
		if invalid := validate(getenv(name)); invalid != nil && *invalid == *e {
			return types.NewError(e.Code, name+": "+e.Msg, e.Details)
		}
	}
	return e
}
