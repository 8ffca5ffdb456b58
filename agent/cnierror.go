// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-dev/berth/agent/addressconflict"
	"github.com/berth-dev/berth/agent/attachdef"
	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/hostports"
	"github.com/berth-dev/berth/agent/plan"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/foreign"
)

// ToCNIError converts an error to a CNI error. The runtime acts on its code, and
// its text appears in the pod's events.
func ToCNIError(err error) *types.Error {
	return types.NewError(code(err), err.Error(), "")
}

// codes has the codes of errors that the agent knows. The first that fits counts.
var codes = []struct {
	code uint
	of   []error
}{
	{types.ErrInvalidEnvironmentVariables, []error{ErrRequest}},
	{types.ErrUnsupportedField, []error{ErrUnsupported}},
	{types.ErrDecodingFailure, []error{plan.ErrDecode}},
	{types.ErrInvalidNetworkConfig, []error{plan.ErrConfig}},
	{types.ErrInvalidNetNS, []error{ErrNodeNetNS}},
	{types.ErrUnknownContainer, []error{ErrUnknownContainer}},
	{api.CodeNotAvailable, []error{ErrNotReady}},
	{api.CodeNetworkMissing, []error{plan.ErrNoDefaultNetwork, chain.ErrNoNetwork, attachdef.ErrNoDefinition, attachdef.ErrNotAllowed, attachdef.ErrAnnotation}},
	{api.CodeNoFloatingIP, []error{plan.ErrNoFloatingIP}},
	{types.ErrInvalidNetworkConfig, []error{foreign.ErrConfig, hostports.ErrForbidden}},
	{api.CodePodNotPlaced, []error{podinfo.ErrNotPlaced, podinfo.ErrNotHolder, podinfo.ErrTooFew, podinfo.ErrBadHint}},
	{types.ErrTryAgainLater, []error{
		podinfo.ErrPodNotFound, podinfo.ErrPodReplaced, hostports.ErrTaken, ErrNotYet, addressconflict.ErrConflict, context.DeadlineExceeded, context.Canceled,
	}},
}

func code(err error) uint {
	var plugin *types.Error
	ofPlugin := errors.As(err, &plugin) && plugin.Code != types.ErrUnknown
	if ofPlugin && plugin.Code == api.CodeLimitedConnectivity && errors.Is(err, ErrNotReady) {
		// It says more than that ADD cannot be served.
		return plugin.Code
	}
	for _, one := range codes {
		if slices.ContainsFunc(one.of, func(known error) bool { return errors.Is(err, known) }) {
			return one.code
		}
	}
	if ofPlugin {
		return plugin.Code
	}
	return types.ErrInternal
}
