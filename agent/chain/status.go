// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"context"
	"strings"
	"sync"
	"time"
)

// goodFor is how long a plugin that said that it can serve ADD is not asked again. Runtimes
// ask every few seconds, and each question runs a program. A plugin that says no is asked
// again each time, so that the node is ready as soon as the plugin is.
const goodFor = 30 * time.Second

// goodAnswers remembers which networks' plugins said that they can serve ADD. Methods are
// safe in parallel and do not block.
type goodAnswers struct {
	mu sync.Mutex
	// until has the end of an answer by the network's configuration and the identity of
	// its programs: another configuration or another version of a plugin is asked at once.
	until map[string]time.Time
}

func (g *goodAnswers) has(key string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return time.Now().Before(g.until[key])
}

func (g *goodAnswers) add(key string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	for other, end := range g.until {
		if !now.Before(end) {
			delete(g.until, other)
		}
	}
	if g.until == nil {
		g.until = map[string]time.Time{}
	}
	g.until[key] = now.Add(goodFor)
}

// forget has all plugins asked again: one of them has failed.
func (g *goodAnswers) forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	clear(g.until)
}

// Status asks whether the plugins are installed and, where the network's version
// has STATUS, whether they could serve ADD. It believes plugins that said so a short time
// ago, unless an ADD has failed since.
func (r *Runner) Status(ctx context.Context, n *Network) error {
	key, err := r.identify(n)
	if err != nil {
		return err
	}
	if !n.atLeast("1.1.0") || r.good.has(key) {
		return nil
	}
	for i, pluginType := range n.Types() {
		if err := r.call(ctx, n, pluginType, "STATUS", Attachment{}, func() ([]byte, error) { return n.inject(i, n.identity()) }); err != nil {
			return err
		}
	}
	r.good.add(key)
	return nil
}

// identify returns a text that is another one where the network or a program of its plugins
// has changed. It returns an error where a plugin is not installed.
func (r *Runner) identify(n *Network) (string, error) {
	var key strings.Builder
	key.Write(n.raw)
	for _, pluginType := range n.Types() {
		path, err := r.find(n, pluginType, "STATUS")
		if err != nil {
			return "", err
		}
		id, err := r.exec.Identify(path)
		if err != nil {
			return "", failed(n, pluginType, "STATUS", err)
		}
		key.WriteString("\x00" + pluginType + "\x00" + id)
	}
	return key.String(), nil
}
