// SPDX-License-Identifier: Apache-2.0

// Package atomicfile writes whole files: a reader, also after the writer was killed, finds the
// old content or the new one, never a part. It never reads a file.
package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Replace gives the file path a content and a mode. It does not wait for the disk: after a loss
// of power the file may be empty.
func Replace(path string, content io.Reader, mode fs.FileMode) error {
	return write(path, content, mode, (*os.File).Close)
}

// ReplaceSynced is Replace for a file that must have the whole old or new content after a loss of
// power.
func ReplaceSynced(path string, content io.Reader, mode fs.FileMode) error {
	return write(path, content, mode, func(file *os.File) error { return errors.Join(file.Sync(), file.Close()) })
}

// Unfinished returns the files that killed writers of path left in its folder. path may be a
// pattern of filepath.Match.
func Unfinished(path string) ([]string, error) {
	found, err := filepath.Glob(filepath.Join(filepath.Dir(path), temporary(path)))
	if err != nil {
		return nil, fmt.Errorf("look for unfinished files of %s: %w", path, err)
	}
	return found, nil
}

// temporary returns the pattern for the names of an unfinished file. Container runtimes ignore
// files with this beginning and end.
func temporary(path string) string { return "." + filepath.Base(path) + ".tmp-*" }

// write writes a file beside path, ends the writing with finish, and names it path.
func write(path string, content io.Reader, mode fs.FileMode, finish func(*os.File) error) (err error) {
	temp, err := os.CreateTemp(filepath.Dir(path), temporary(path))
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temp.Name()) // the error says more
		}
	}()
	_, err = io.Copy(temp, content)
	if err := errors.Join(err, temp.Chmod(mode), finish(temp)); err != nil {
		return err
	}
	return os.Rename(temp.Name(), path)
}
