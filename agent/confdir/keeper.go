// SPDX-License-Identifier: Apache-2.0

package confdir

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/cni/atomicfile"
)

// again is how often the keeper looks if it cannot watch the folder, and while there is a problem,
// because its cause may be outside of the folder.
const again = 10 * time.Second

// EventNotCalled (Warning on Node): the runtime does not call Berth for new pods, because another
// program took the CNI configuration away or put its own first, because it reads another folder, or
// because the node's network needs agent.hostRoot. The agent is not ready. Do: see
// docs/how-to/other-cni.md.
const EventNotCalled = "RuntimeDoesNotCallBerth"

// Keeper keeps a file.
type Keeper struct {
	// Dir is the runtime's folder and Name our file in it.
	Dir, Name string
	// Content is what our file has.
	Content []byte
	// Others reports whether pods without a floating IP have a network. It returns an error if the
	// agent could not run the plugins: then our file stays away, and the runtime continues to run them
	// itself.
	Others func() (bool, error)
	// Told, if given, is called when a problem begins or changes.
	Told func(problem error)

	// For tests: how to watch, and again.
	watch func() (*fsnotify.Watcher, error)
	again time.Duration

	past past // of Run

	mu      sync.Mutex
	looked  bool
	problem error
	// written is the time since which the file is right, zero if it is not. called: the runtime has
	// called since the start. Until then, came has the UIDs of pods that came after written, and
	// uncalled is the problem found with such a pod.
	written  time.Time
	called   bool
	came     map[string]bool
	uncalled error
}

// reload is how long a runtime may take to read a new configuration.
const reload = 10 * time.Second

// Ready returns an error while the runtime does not call Berth. It is safe beside Run.
func (k *Keeper) Ready() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.looked {
		return errors.New("the CNI configuration is not written yet")
	}
	return cmp.Or(k.problem, k.uncalled)
}

// Called notes that the runtime has called.
func (k *Keeper) Called() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.called, k.came, k.uncalled = true, nil, nil
}

// Came notes a pod that was bound to this node just now.
func (k *Keeper) Came(uid string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.called || k.written.IsZero() || time.Since(k.written) < reload {
		return
	}
	if k.came == nil {
		k.came = map[string]bool{}
	}
	k.came[uid] = true
}

// Addressed notes that a pod, not of the node's own network, has an address. If the pod came after
// the file, and the runtime has not called since the start, the runtime reads another folder.
func (k *Keeper) Addressed(uid, pod string) {
	k.mu.Lock()
	var told error
	if k.came[uid] && k.uncalled == nil {
		told = fmt.Errorf("pod %s got an address, and the runtime has not called Berth for it: it reads another folder than %s; set the options --cni-conf-dir and --cni-bin-dir (the chart's agent.cniConfDir and agent.cniBinDir), which docs/how-to/other-cni.md has for each distribution", pod, k.Dir)
		k.uncalled = told
	}
	k.mu.Unlock()
	if told != nil && k.Told != nil {
		k.Told(told)
	}
}

// Run writes the file, and again when it is gone, until the context ends.
func (k *Keeper) Run(ctx context.Context) error {
	if err := os.MkdirAll(k.Dir, 0o755); err != nil {
		return fmt.Errorf("make the runtime's folder: %w", err)
	}
	// The watch begins before the first look, so nothing is missed in between.
	changes, missed, closeWatcher := k.follow(ctx)
	defer closeWatcher()
	pause := cmp.Or(k.again, again)
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		problem, err := k.tend(ctx)
		if err != nil {
			return err
		}
		timer.Stop()
		if problem != nil || changes == nil {
			timer.Reset(pause)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case change := <-changes:
			if change.Name == k.Dir && (change.Has(fsnotify.Remove) || change.Has(fsnotify.Rename)) {
				return fmt.Errorf("the runtime's folder %s was deleted or renamed", k.Dir)
			}
		case err := <-missed:
			klog.FromContext(ctx).V(2).Info("Missed changes of the runtime's folder, looking at all", "err", err)
		}
	}
}

// follow watches the folder. If it cannot, because other programs have used up root's watches, the
// channels are nil.
func (k *Keeper) follow(ctx context.Context) (changes <-chan fsnotify.Event, missed <-chan error, closeIt func()) {
	open := fsnotify.NewWatcher
	if k.watch != nil {
		open = k.watch
	}
	watcher, err := open()
	if err == nil {
		if err = watcher.Add(k.Dir); err == nil {
			return watcher.Events, watcher.Errors, func() { _ = watcher.Close() }
		}
		_ = watcher.Close()
	}
	klog.FromContext(ctx).Error(err, "Cannot watch the runtime's folder, looking from time to time; if files are too many, raise the sysctl fs.inotify.max_user_instances", "folder", k.Dir, "every", again)
	return nil, nil, func() {}
}

// tend looks at the folder, carries out the action, and returns the problem.
func (k *Keeper) tend(ctx context.Context) (problem, err error) {
	files, err := read(k.Dir)
	if err != nil {
		return nil, err
	}
	others, refusal := k.Others()
	view, replaced := Look(files, k.Name, k.Content), k.past.written
	do, problem := k.past.decide(k.Name, view, others, refusal, time.Now())
	path, logger := filepath.Join(k.Dir, k.Name), klog.FromContext(ctx)
	switch do {
	case write:
		if err := atomicfile.ReplaceSynced(path, bytes.NewReader(k.Content), 0o644); err != nil {
			return nil, fmt.Errorf("write the CNI configuration: %w", err)
		}
		logger.Info("Wrote the CNI configuration", "file", path, "again", replaced, "movedTo", view.MovedTo)
	case remove:
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("remove the CNI configuration: %w", err)
		}
		logger.Info("Removed the CNI configuration", "file", path)
	case nothing:
		if view.Written && view.Former != "" {
			if err := k.forget(ctx, view.Former); err != nil {
				return nil, err
			}
		}
	}
	k.note(ctx, problem)
	return problem, nil
}

// forget removes our file of another --cni-conf-name, which the runtime would take before others.
func (k *Keeper) forget(ctx context.Context, name string) error {
	path := filepath.Join(k.Dir, name)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the CNI configuration of another name: %w", err)
	}
	klog.FromContext(ctx).Info("Removed the CNI configuration of another name", "file", path)
	return nil
}

// note keeps the problem, and calls Told if it has changed.
func (k *Keeper) note(ctx context.Context, problem error) {
	k.mu.Lock()
	same := text(problem) == text(k.problem)
	k.looked, k.problem = true, problem
	switch {
	case problem != nil:
		k.written = time.Time{}
	case k.written.IsZero():
		k.written = time.Now()
	}
	k.mu.Unlock()
	switch {
	case same:
	case problem == nil:
		klog.FromContext(ctx).Info("The runtime calls Berth again")
	default:
		klog.FromContext(ctx).Error(problem, "Not ready")
		if k.Told != nil {
			k.Told(problem)
		}
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// read reads the files of a folder. It leaves out large files, which are no configurations, and
// files that are gone meanwhile.
func read(dir string) ([]File, error) {
	const most = 1 << 20
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read the runtime's folder: %w", err)
	}
	var files []File
	for _, entry := range entries {
		path := filepath.Join(dir, entry.Name())
		info, err := os.Stat(path) // Behind a symbolic link.
		if err != nil || !info.Mode().IsRegular() || info.Size() > most {
			continue
		}
		content, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the runtime's folder: %w", err)
		}
		files = append(files, File{entry.Name(), content})
	}
	return files, nil
}
