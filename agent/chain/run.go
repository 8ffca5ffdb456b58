// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-dev/berth/agent/fault"
)

// Runner executes plugins. Safe for concurrent use.
type Runner struct {
	exec invoke.Exec
	path []string
}

// NewRunner returns a Runner that looks for plugins in the folders of path.
func NewRunner(exec invoke.Exec, path []string) *Runner {
	return &Runner{exec: exec, path: path}
}

// Add runs ADD of each plugin in order and returns the last result. After an
// error the caller runs Del.
func (r *Runner) Add(ctx context.Context, n *Network, a Attachment) (json.RawMessage, error) {
	var result json.RawMessage
	for i, pluginType := range n.Types() {
		path, err := r.exec.FindInPath(pluginType, r.path)
		if err != nil {
			return nil, failed(n, pluginType, "ADD", err)
		}
		conf, err := n.configOf(i, a, result)
		if err != nil {
			return nil, err
		}
		res, err := invoke.ExecPluginWithResult(ctx, path, conf, r.args("ADD", a), r.exec)
		if err != nil {
			return nil, failed(n, pluginType, "ADD", err)
		}
		if result, err = encode(res, n.list.CNIVersion); err != nil {
			return nil, failed(n, pluginType, "ADD", err)
		}
		fault.Point("chain/add")
	}
	return result, nil
}

func encode(res types.Result, version string) (json.RawMessage, error) {
	converted, err := res.GetAsVersion(version)
	if err != nil {
		return nil, fmt.Errorf("convert result to version %s: %w", version, err)
	}
	raw, err := json.Marshal(converted)
	if err != nil {
		return nil, fmt.Errorf("encode result: %w", err)
	}
	return raw, nil
}

// Del runs DEL of every plugin, last first. result is that of Add, nil if Add
// did not finish.
func (r *Runner) Del(ctx context.Context, n *Network, a Attachment, result json.RawMessage) error {
	if !n.atLeast("0.4.0") {
		result = nil
	}
	var errs []error
	types := n.Types()
	for i, pluginType := range slices.Backward(types) {
		errs = append(errs, r.without(ctx, n, i, pluginType, "DEL", a, result))
		fault.Point("chain/del")
	}
	return errors.Join(errs...)
}

// Check runs CHECK of each plugin in order, where the network's version has it.
func (r *Runner) Check(ctx context.Context, n *Network, a Attachment, result json.RawMessage) error {
	if n.list.DisableCheck || !n.atLeast("0.4.0") {
		return nil
	}
	for i, pluginType := range n.Types() {
		if err := r.without(ctx, n, i, pluginType, "CHECK", a, result); err != nil {
			return err
		}
	}
	return nil
}

func (r *Runner) without(ctx context.Context, n *Network, i int, pluginType, command string, a Attachment, result json.RawMessage) error {
	path, err := r.exec.FindInPath(pluginType, r.path)
	if err != nil {
		return failed(n, pluginType, command, err)
	}
	conf, err := n.configOf(i, a, result)
	if err != nil {
		return err
	}
	if err := invoke.ExecPluginWithoutResult(ctx, path, conf, r.args(command, a), r.exec); err != nil {
		return failed(n, pluginType, command, err)
	}
	return nil
}

// Status asks the plugins whether they could serve ADD, where the network's
// version has STATUS, and in any case whether they are installed.
func (r *Runner) Status(ctx context.Context, n *Network) error {
	for i, pluginType := range n.Types() {
		path, err := r.exec.FindInPath(pluginType, r.path)
		if err != nil {
			return failed(n, pluginType, "STATUS", err)
		}
		if !n.atLeast("1.1.0") {
			continue
		}
		conf, err := n.inject(i, n.identity())
		if err != nil {
			return err
		}
		if err := invoke.ExecPluginWithoutResult(ctx, path, conf, r.args("STATUS", Attachment{}), r.exec); err != nil {
			return failed(n, pluginType, "STATUS", err)
		}
	}
	return nil
}

// GC tells the plugins which attachments are valid, where the network's version
// has GC.
func (r *Runner) GC(ctx context.Context, n *Network, valid []types.GCAttachment) error {
	if n.list.DisableGC || !n.atLeast("1.1.0") {
		return nil
	}
	var errs []error
	for i, pluginType := range n.Types() {
		path, err := r.exec.FindInPath(pluginType, r.path)
		if err != nil {
			errs = append(errs, failed(n, pluginType, "GC", err))
			continue
		}
		conf, err := n.gcConfigOf(i, valid)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if err := invoke.ExecPluginWithoutResult(ctx, path, conf, r.args("GC", Attachment{}), r.exec); err != nil {
			errs = append(errs, failed(n, pluginType, "GC", err))
		}
	}
	return errors.Join(errs...)
}

func (r *Runner) args(command string, a Attachment) *invoke.Args {
	args := &invoke.Args{
		Command: command, ContainerID: a.ContainerID, NetNS: a.NetNS, IfName: a.IfName, PluginArgsStr: a.Args,
	}
	for i, dir := range r.path {
		if i > 0 {
			args.Path += ":"
		}
		args.Path += dir
	}
	return args
}

// failed names plugin and network; the plugin's own error, with its code, stays
// inside.
func failed(n *Network, pluginType, command string, err error) error {
	return fmt.Errorf("%s by plugin %s of network %q: %w", command, pluginType, n.Name(), err)
}
