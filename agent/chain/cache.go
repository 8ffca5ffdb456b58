// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/berth-dev/berth/cni/atomicfile"
)

// Cache has a file for each attachment for which plugins may keep files of their own, such as
// host-local's leases. The file exists from before ADD until DEL has succeeded, and has everything
// that DEL needs; libcni keeps such files, too. They outlive the node's kernel and the caller's
// records.
//
// A write does not wait for the disk, as host-local's does not: a loss of power may lose the newest
// files of both.
type Cache struct {
	dir, bootID string
}

// NewCache returns the cache in a folder, which need not exist. bootID identifies the present start
// of the node's kernel.
func NewCache(dir, bootID string) *Cache { return &Cache{dir: dir, bootID: bootID} }

const cacheSuffix = ".json"

// cached is the content of a file.
type cached struct {
	BootID     string          `json:"bootID"`
	Attachment Attachment      `json:"attachment"`
	Network    json.RawMessage `json:"network"`
	// Chained says that the caller does the work of the first plugin.
	Chained bool `json:"chained,omitempty"`
}

// Attached is an attachment whose DEL has not succeeded.
type Attached struct {
	Network *Network
	Attachment
	// Earlier says that the attachment was made before the node's kernel started: only files of it are
	// left, and the path of its namespace may belong to another container.
	Earlier bool
}

func (c *Cache) file(n *Network, a Attachment) string {
	return filepath.Join(c.dir, fmt.Sprintf("%x", sha256.Sum256([]byte(n.Name()+"\x00"+a.ContainerID+"\x00"+a.IfName)))+cacheSuffix)
}

func (c *Cache) put(n *Network, a Attachment) error {
	if c == nil || len(n.Types()) == 0 {
		return nil
	}
	raw, err := json.Marshal(cached{BootID: c.bootID, Attachment: a, Network: n.raw, Chained: n.chained})
	if err != nil {
		return fmt.Errorf("encode an attachment to network %q: %w", n.Name(), err)
	}
	write := func() error { return atomicfile.Replace(c.file(n, a), bytes.NewReader(raw), 0o600) }
	err = write()
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(c.dir, 0o700); err == nil {
			err = write()
		}
	}
	if err != nil {
		return fmt.Errorf("keep the input of DEL of network %q: %w", n.Name(), err)
	}
	return nil
}

func (c *Cache) remove(n *Network, a Attachment) error {
	if c == nil {
		return nil
	}
	if err := os.Remove(c.file(n, a)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the input of DEL of network %q: %w", n.Name(), err)
	}
	return nil
}

// list returns the readable attachments, and an error that names the others. It removes a damaged
// file, because nobody can use it.
func (c *Cache) list() ([]Attached, error) {
	if c == nil {
		return nil, nil
	}
	paths, err := filepath.Glob(filepath.Join(c.dir, "*"+cacheSuffix))
	if err != nil {
		return nil, fmt.Errorf("list the attachments in %s: %w", c.dir, err)
	}
	var all []Attached
	var errs []error
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("read an attachment: %w", err))
			continue
		}
		one, err := c.parse(raw)
		if err != nil {
			errs = append(errs, fmt.Errorf("removed the damaged file %s; its plugins may keep a lease for a container that is gone: %w", path, err), os.Remove(path))
			continue
		}
		all = append(all, one)
	}
	return all, errors.Join(errs...)
}

func (c *Cache) parse(raw []byte) (Attached, error) {
	var one cached
	if err := json.Unmarshal(raw, &one); err != nil {
		return Attached{}, err
	}
	network, err := Parse(one.Network)
	if err != nil {
		return Attached{}, err
	}
	if one.Chained {
		network = network.Chained()
	}
	return Attached{Network: network, Attachment: one.Attachment, Earlier: one.BootID != c.bootID}, nil
}

// CacheFiles lists the files of the cache in a folder, also files that a killed process did not
// finish.
func CacheFiles(dir string) ([]string, error) {
	files := filepath.Join(dir, "*"+cacheSuffix)
	paths, err := filepath.Glob(files)
	if err != nil {
		return nil, fmt.Errorf("list the attachments in %s: %w", dir, err)
	}
	unfinished, err := atomicfile.Unfinished(files)
	return append(paths, unfinished...), err
}
