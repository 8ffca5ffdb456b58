// SPDX-License-Identifier: Apache-2.0

package answerer

// Pending returns how many inputs of a link wait.
func (a *Answerer) Pending(link int) int {
	a.mu.Lock()
	l := a.loops[link]
	a.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.inputs)
}
