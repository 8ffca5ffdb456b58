// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-dev/berth/agent/addressconflict"
	"github.com/berth-dev/berth/agent/attachdef"
	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/hostports"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/foreign"
)

// ToCNIError converts an error to a CNI error. The runtime acts on its code, and
// its text appears in the pod's events.
func ToCNIError(err error) *types.Error {
	return types.NewError(code(err), err.Error(), "")
}

func code(err error) uint {
	switch {
	case errors.Is(err, ErrRequest):
		return types.ErrInvalidEnvironmentVariables
	case errors.Is(err, ErrUnsupported):
		return types.ErrUnsupportedField
	case errors.Is(err, ErrDecode):
		return types.ErrDecodingFailure
	case errors.Is(err, ErrConfig):
		return types.ErrInvalidNetworkConfig
	case errors.Is(err, ErrNodeNetNS):
		return types.ErrInvalidNetNS
	case errors.Is(err, ErrUnknownContainer):
		return types.ErrUnknownContainer
	case errors.Is(err, ErrNotReady):
		return statusCode(err)
	case errors.Is(err, ErrNoDefaultNetwork), errors.Is(err, chain.ErrNoNetwork), errors.Is(err, attachdef.ErrNoDefinition),
		errors.Is(err, attachdef.ErrNotAllowed), errors.Is(err, attachdef.ErrAnnotation):
		return api.CodeNetworkMissing
	case errors.Is(err, ErrNoFloatingIP):
		return api.CodeNoFloatingIP
	case errors.Is(err, foreign.ErrConfig), errors.Is(err, hostports.ErrForbidden):
		return types.ErrInvalidNetworkConfig
	case errors.Is(err, podinfo.ErrNotPlaced), errors.Is(err, podinfo.ErrNotHolder), errors.Is(err, podinfo.ErrTooFew), errors.Is(err, podinfo.ErrBadHint):
		return api.CodePodNotPlaced
	case errors.Is(err, podinfo.ErrPodNotFound), errors.Is(err, podinfo.ErrPodReplaced), errors.Is(err, hostports.ErrTaken),
		errors.Is(err, ErrNotYet), errors.Is(err, addressconflict.ErrConflict), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return types.ErrTryAgainLater
	}
	var plugin *types.Error
	if errors.As(err, &plugin) && plugin.Code != types.ErrUnknown {
		return plugin.Code
	}
	return types.ErrInternal
}

// statusCode returns the code of a failed STATUS: the code of the failed plugin where it says more
// than that ADD cannot be served.
func statusCode(err error) uint {
	var plugin *types.Error
	if errors.As(err, &plugin) && plugin.Code == api.CodeLimitedConnectivity {
		return plugin.Code
	}
	return api.CodeNotAvailable
}
