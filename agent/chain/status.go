// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"context"
	"strings"
	"sync"
	"time"
)

// goodFor is how long a plugin is not asked again after it said that it can serve ADD. Runtimes ask
// every few seconds, and each STATUS runs a program. A plugin that is not ready is asked each time,
// so that the node becomes ready together with the plugin.
const goodFor = 30 * time.Second

// goodAnswers remembers the networks whose plugins can serve ADD. Methods are safe in parallel and
// do not block.
type goodAnswers struct {
	mu sync.Mutex
	// until has the time until which a result counts. The key is the network's configuration and the
	// identity of its programs: after a change of either the plugins are asked at once.
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

// forget makes the next Status ask all plugins again, after a failure.
func (g *goodAnswers) forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	clear(g.until)
}

// Status checks that the plugins are installed and, if the network's version has STATUS, that they
// can serve ADD. A recent success counts, unless an ADD has failed since.
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

// identify returns a text that changes with the network and the programs of its plugins. It returns
// an error if a plugin is not installed.
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
