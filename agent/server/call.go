// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/relay"
)

// serveCall serves a call of the runtime as berth-cni got it; berth-cni prints the response.
func (s *Server) serveCall(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	var result []byte
	call, e := readCall(w, r)
	if e == nil {
		result, e = s.answer(r.Context(), call)
	}
	s.observe("", call.Command, e, time.Since(start))
	outcome := relay.Result
	if e != nil {
		outcome = relay.Error
		var err error
		if result, err = json.Marshal(e); err != nil {
			result = fmt.Appendf(nil, `{"code":%d,"msg":"an error that cannot be encoded"}`, e.Code)
		}
	}
	w.Header().Set(relay.HeaderOutcome, outcome)
	w.Header().Set("Content-Length", strconv.Itoa(len(result)))
	if _, err := w.Write(result); err != nil {
		logUnread(r.Context(), "", &call.Request, err)
	}
}

// call is a call of the runtime.
type call struct {
	api.Request

	// version of the configuration.
	version string
}

// readCall reads a call and refuses one that the specification does not allow. The call that it
// returns always names the command.
func readCall(w http.ResponseWriter, r *http.Request) (call, *types.Error) {
	var c call
	values := map[string]*string{
		"CNI_COMMAND": &c.Command, "CNI_CONTAINERID": &c.ContainerID, "CNI_NETNS": &c.NetNS, "CNI_IFNAME": &c.IfName,
		"CNI_ARGS": &c.Args, "CNI_PATH": new(string),
	}
	for _, variable := range relay.Variables() {
		value, err := url.PathUnescape(r.Header.Get(relay.HeaderOf(variable)))
		if err != nil {
			return c, types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("%s: %v", variable, err), "")
		}
		*values[variable] = value
	}
	config, err := io.ReadAll(http.MaxBytesReader(w, r.Body, api.MaxRequestBytes))
	if err != nil {
		return c, types.NewError(types.ErrIOFailure, fmt.Sprintf("read the network configuration: %v", err), "")
	}
	c.Config = config
	if e := checkVariables(c.Command, func(variable string) string { return *values[variable] }); e != nil {
		return c, e
	}
	return c, c.checkConfig()
}

// command is a command of the specification.
type command struct {
	// needs are the variables that the command needs.
	needs []string
	// since is the version of the specification that added the command; empty for the first version.
	since string
	run   func(h Handler, ctx context.Context, req *api.Request) (json.RawMessage, error)
}

var commands = map[string]command{
	"ADD":    {[]string{"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"}, "", Handler.Add},
	"CHECK":  {[]string{"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"}, "0.4.0", silently(Handler.Check)},
	"DEL":    {[]string{"CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"}, "", silently(Handler.Del)},
	"GC":     {[]string{"CNI_PATH"}, "1.1.0", silently(Handler.GC)},
	"STATUS": {[]string{"CNI_PATH"}, "1.1.0", silently(func(h Handler, ctx context.Context, _ *api.Request) error { return h.Status(ctx) })},
}

// silently adds an empty result to a call without a result.
func silently(call func(Handler, context.Context, *api.Request) error) func(Handler, context.Context, *api.Request) (json.RawMessage, error) {
	return func(h Handler, ctx context.Context, req *api.Request) (json.RawMessage, error) {
		return nil, call(h, ctx, req)
	}
}

// checkVariables refuses invalid values of the runtime.
func checkVariables(command string, get func(variable string) string) *types.Error {
	validate := map[string]func(string) *types.Error{"CNI_CONTAINERID": utils.ValidateContainerID, "CNI_IFNAME": utils.ValidateInterfaceName}
	var missing []string
	for _, variable := range commands[command].needs {
		value := get(variable)
		if value == "" {
			missing = append(missing, variable)
		} else if valid := validate[variable]; valid != nil {
			if e := valid(value); e != nil {
				// The specification demands the name of the variable.
				return types.NewError(e.Code, variable+": "+e.Msg, e.Details)
			}
		}
	}
	if len(missing) > 0 {
		return types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("required env variables [%s] missing", strings.Join(missing, ",")), "")
	}
	return nil
}

// checkConfig refuses invalid configurations, and commands that their version does not have.
func (c *call) checkConfig() *types.Error {
	var conf struct {
		Name string `json:"name"`
	}
	if err := json.Unmarshal(c.Config, &conf); err != nil {
		return types.NewError(types.ErrDecodingFailure, fmt.Sprintf("decode the network configuration: %v", err), "")
	}
	if conf.Name == "" {
		return types.NewError(types.ErrInvalidNetworkConfig, "missing network name", "")
	}
	if e := utils.ValidateNetworkName(conf.Name); e != nil {
		return e
	}
	command, known := commands[c.Command]
	if !known {
		return types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("unknown CNI_COMMAND: %.100q", c.Command), "")
	}
	var err error
	if c.version, err = (&version.ConfigDecoder{}).Decode(c.Config); err != nil {
		return types.NewError(types.ErrDecodingFailure, err.Error(), "")
	}
	if first := command.since; first != "" {
		known, err := version.GreaterThanOrEqualTo(c.version, first)
		if err != nil {
			return types.NewError(types.ErrDecodingFailure, err.Error(), "")
		}
		if !known {
			return types.NewError(types.ErrIncompatibleCNIVersion, fmt.Sprintf("config version does not allow %s: it is %s, %s came with %s", c.Command, c.version, c.Command, first), "")
		}
	}
	if !slices.Contains(relay.Versions(), c.version) {
		return types.NewError(types.ErrIncompatibleCNIVersion, "incompatible CNI versions",
			fmt.Sprintf("config is %q, berth-cni supports %q", c.version, relay.Versions()))
	}
	return nil
}

// answer makes the call. Its result is in the version of the call, which may differ from the
// network's.
func (s *Server) answer(ctx context.Context, c call) ([]byte, *types.Error) {
	raw, e := s.call(ctx, "", &c.Request, s.dispatch)
	if e != nil && c.Command == "STATUS" && e.Code == types.ErrTryAgainLater {
		e = types.NewError(api.CodeNotAvailable, e.Msg, e.Details)
	}
	if e != nil || c.Command != "ADD" {
		return nil, e
	}
	result, err := create.CreateFromBytes(raw)
	if err == nil {
		result, err = result.GetAsVersion(c.version)
	}
	if err == nil {
		raw, err = json.Marshal(result)
	}
	if err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, fmt.Sprintf("convert the result to version %s: %v", c.version, err), "")
	}
	return raw, nil
}
