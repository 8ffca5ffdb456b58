// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/view"
)

// feed brings FloatingIPs from the API server into the book, for a process that reads them nowhere
// else. The book is the only copy: an informer would keep every object a second time, and would
// need more memory than the book. feed is the store of a reflector, which calls its methods one
// after the other.
type feed struct {
	ipam      *IPAM
	reflector *cache.Reflector
	once      sync.Once
	listed    chan struct{} // closed when the book has all objects of the first list
}

var _ cache.TransformingStore = (*feed)(nil)

func newFeed(i *IPAM, ips *client.FloatingIPs) *feed {
	f := &feed{ipam: i, listed: make(chan struct{})}
	source := client.NewSource[*v1alpha1.FloatingIPList](ips)
	f.reflector = cache.NewReflectorWithOptions(source, &v1alpha1.FloatingIP{}, f, cache.ReflectorOptions{Name: "FloatingIPs"})
	return f
}

// run follows the API server until ctx ends. It blocks.
func (f *feed) run(ctx context.Context) { f.reflector.RunWithContext(ctx) }

// Name says which objects the feed reads.
func (f *feed) Name() string { return "FloatingIPs" }

// Done is closed when the book has all objects of the first list.
func (f *feed) Done() <-chan struct{} { return f.listed }

// Transformer removes the managed fields from the objects of the reflector's list.
func (f *feed) Transformer() cache.TransformFunc { return view.DropManagedFields }

// Add brings a new object into the book.
func (f *feed) Add(object any) error {
	ip := object.(*v1alpha1.FloatingIP)
	f.noteOther(ip)
	f.ipam.observed(ip)
	return nil
}

// Update brings a changed object into the book.
func (f *feed) Update(object any) error { return f.Add(object) }

// Delete takes a deleted object, in its final state, out of the book.
func (f *feed) Delete(object any) error {
	f.ipam.forgotten(object.(*v1alpha1.FloatingIP))
	return nil
}

// Resync does nothing: the book needs each state only once.
func (f *feed) Resync() error { return nil }

// Replace brings a list into the book, and removes objects from the book that were deleted since
// the previous list. It does not remove objects that this process wrote after the list was made
// (KEP-5504: resource versions are comparable integers).
func (f *feed) Replace(objects []any, version string) error {
	made, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return fmt.Errorf("list FloatingIPs: resource version %q is not a number: %w", version, err)
	}
	listed := make(map[string]bool, len(objects))
	for _, object := range objects {
		listed[string(object.(*v1alpha1.FloatingIP).UID)] = true
	}
	for _, record := range f.ipam.book.Without(listed, made) {
		f.ipam.missed(record)
	}
	for _, object := range objects {
		ip := object.(*v1alpha1.FloatingIP)
		f.noteOther(ip)
		f.ipam.observedAt(made, ip)
	}
	f.once.Do(func() { close(f.listed) })
	return nil
}

// noteOther removes an object from the book if the API server's object has another UID, because the
// watch missed the deletion of the former object.
func (f *feed) noteOther(ip *v1alpha1.FloatingIP) {
	if record, known := f.ipam.book.Stored(ip.Addr()); known && record.UID != "" && record.UID != string(ip.UID) {
		f.ipam.missed(record)
	}
}
