// SPDX-License-Identifier: Apache-2.0

// Package agentkey reads the cluster's key, by which agents sign their messages to each other, from the files of
// a Secret, and reads it again as it is replaced. It makes no key.
package agentkey

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/berth-dev/berth/agent/answering/datagram"
)

// Files of a key's folder. Agents sign by Current. They believe Other, too: while the key is replaced, the next one
// before any node signs by it, and then the last one.
const (
	Current = "current"
	Other   = "other"
)

// Read returns the keys in a folder, the one to sign by first. Without one there are none, and no error.
func Read(dir string) ([][]byte, error) {
	var keys [][]byte
	for _, name := range []string{Current, Other} {
		key, err := os.ReadFile(filepath.Join(dir, name))
		switch {
		case errors.Is(err, fs.ErrNotExist) && name == Current:
			return nil, nil
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, fmt.Errorf("read a key: %w", err)
		case len(key) < datagram.MinKey:
			return nil, fmt.Errorf("the key %s in %s has %d bytes: it needs %d or more", name, dir, len(key), datagram.MinKey)
		default:
			keys = append(keys, key)
		}
	}
	return keys, nil
}

// Holder holds the codec of a cluster by the keys that were read last. Its methods may run in parallel, but Refresh.
type Holder struct {
	dir, cluster string
	keys         [][]byte
	codec        atomic.Pointer[datagram.Codec]
}

// NewHolder returns a Holder without a codec. cluster is the UID of the namespace kube-system.
func NewHolder(dir, cluster string) *Holder { return &Holder{dir: dir, cluster: cluster} }

// Codec returns the codec, nil before there was a key.
func (h *Holder) Codec() *datagram.Codec { return h.codec.Load() }

// Refresh reads the keys again. After an error, and where the keys are gone, the codec stays as it was: agents would
// not understand each other while a Secret is replaced.
func (h *Holder) Refresh() error {
	keys, err := Read(h.dir)
	if err != nil || len(keys) == 0 || slices.EqualFunc(keys, h.keys, bytes.Equal) {
		return err
	}
	codec, err := datagram.NewCodec(h.cluster, keys...)
	if err != nil {
		return err
	}
	h.codec.Store(codec)
	h.keys = keys
	return nil
}
