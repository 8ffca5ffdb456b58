// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-dev/berth/cni/fault"
)

// Runner executes plugins. Safe for concurrent use.
type Runner struct {
	// Cache may be nil, to keep nothing.
	Cache *Cache

	exec executor
	path []string
	good goodAnswers
}

// executor runs plugins. Safe in parallel.
type executor interface {
	invoke.Exec
	// Identify returns a text that changes with the file at a path of FindInPath. It blocks for the
	// file system only.
	Identify(path string) (string, error)
}

// NewRunner returns a Runner that looks for plugins in the folders of path.
func NewRunner(exec executor, path []string) *Runner {
	return &Runner{exec: exec, path: path}
}

// Add runs ADD of each plugin in order and returns the last result. previous is the
// result of an interface that the caller made; the first plugin gets it as prevResult.
// After an error the caller runs Del.
func (r *Runner) Add(ctx context.Context, n *Network, a Attachment, previous json.RawMessage) (json.RawMessage, error) {
	// If a plugin is missing, no plugin has run for the container, so there is nothing to note.
	paths := make([]string, len(n.Types()))
	for i, pluginType := range n.Types() {
		var err error
		if paths[i], err = r.find(n, pluginType, "ADD"); err != nil {
			return nil, err
		}
	}
	if err := r.Cache.put(n, a); err != nil {
		return nil, err
	}
	result := previous
	for i, pluginType := range n.Types() {
		conf, err := n.configOf(i, a, result)
		if err != nil {
			return nil, err
		}
		res, err := invoke.ExecPluginWithResult(ctx, paths[i], conf, r.args("ADD", a), r.exec)
		if err != nil {
			r.good.forget()
			return nil, failed(n, pluginType, "ADD", err)
		}
		if result, err = n.Encode(res); err != nil {
			return nil, failed(n, pluginType, "ADD", err)
		}
		fault.Point("chain/add")
	}
	return result, nil
}

// Del runs DEL of every plugin, last first, and returns all errors. Each plugin gets its share of
// the remaining time of the context: a hanging plugin must not use up the time in which the others
// remove their objects. result is Add's, nil if Add did not finish.
func (r *Runner) Del(ctx context.Context, n *Network, a Attachment, result json.RawMessage) error {
	if !n.atLeast("0.4.0") {
		result = nil
	}
	var errs []error
	for i, pluginType := range slices.Backward(n.Types()) {
		errs = append(errs, r.del(ctx, n, i, pluginType, a, result))
		fault.Point("chain/del")
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return r.Cache.remove(n, a)
}

// Attached lists the attachments of Add that Del has not ended, also from an earlier process and an
// earlier start of the node's kernel. If it returns an error, it also returns the readable
// attachments.
func (r *Runner) Attached() ([]Attached, error) { return r.Cache.list() }

func (r *Runner) del(ctx context.Context, n *Network, i int, pluginType string, a Attachment, result json.RawMessage) error {
	if deadline, limited := ctx.Deadline(); limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/time.Duration(i+1))
		defer cancel()
	}
	err := r.call(ctx, n, pluginType, "DEL", a, func() ([]byte, error) { return n.configOf(i, a, result) })
	var e *types.Error
	if errors.As(err, &e) && e.Code == types.ErrUnknownContainer {
		// "No cleanup needed", by the specification.
		return nil
	}
	return err
}

// Check runs CHECK of each plugin in order, if the network's version has CHECK.
func (r *Runner) Check(ctx context.Context, n *Network, a Attachment, result json.RawMessage) error {
	if n.list.DisableCheck || !n.atLeast("0.4.0") {
		return nil
	}
	for i, pluginType := range n.Types() {
		if err := r.call(ctx, n, pluginType, "CHECK", a, func() ([]byte, error) { return n.configOf(i, a, result) }); err != nil {
			return err
		}
	}
	return nil
}

// GC tells the plugins the valid attachments, if the network's version has GC, and returns all
// errors.
func (r *Runner) GC(ctx context.Context, n *Network, valid []types.GCAttachment) error {
	if n.list.DisableGC || !n.atLeast("1.1.0") {
		return nil
	}
	var errs []error
	for i, pluginType := range n.Types() {
		errs = append(errs, r.call(ctx, n, pluginType, "GC", Attachment{}, func() ([]byte, error) { return n.gcConfigOf(i, valid) }))
	}
	return errors.Join(errs...)
}

// call runs a command without a result; config makes the plugin's standard input.
func (r *Runner) call(ctx context.Context, n *Network, pluginType, command string, a Attachment, config func() ([]byte, error)) error {
	path, err := r.find(n, pluginType, command)
	if err != nil {
		return err
	}
	stdin, err := config()
	if err != nil {
		return err
	}
	if err := invoke.ExecPluginWithoutResult(ctx, path, stdin, r.args(command, a), r.exec); err != nil {
		return failed(n, pluginType, command, err)
	}
	return nil
}

func (r *Runner) find(n *Network, pluginType, command string) (path string, err error) {
	if path, err = r.exec.FindInPath(pluginType, r.path); err != nil {
		return "", failed(n, pluginType, command, err)
	}
	return path, nil
}

func (r *Runner) args(command string, a Attachment) *invoke.Args {
	return &invoke.Args{
		Command: command, ContainerID: a.ContainerID, NetNS: a.NetNS, IfName: a.IfName, PluginArgsStr: a.Args,
		Path: strings.Join(r.path, string(os.PathListSeparator)),
	}
}

// failed adds the names of plugin and network to an error. The plugin's own error,
// with its code, stays inside.
func failed(n *Network, pluginType, command string, err error) error {
	return fmt.Errorf("%s by plugin %s of network %q: %w", command, pluginType, n.Name(), err)
}
