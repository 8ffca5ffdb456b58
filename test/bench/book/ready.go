// SPDX-License-Identifier: Apache-2.0

package book

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Ready is how long a scheduler that starts on the largest cluster reads the book:
// from the request for everything to the first address it can give.
type Ready struct {
	Seconds float64
	// CPUSeconds is the CPU time of the process meanwhile, with the server that answered it.
	CPUSeconds float64
	// How the client asked: "LIST" or "WATCH", which tells everything first.
	How string
	// BytesPerAddress that the process keeps, with its informers.
	BytesPerAddress float64
	// JSONMegabytes it read.
	JSONMegabytes float64
}

// MeasureReady measures a whole book on an API server that answers from a file.
func MeasureReady(ctx context.Context) (*Ready, error) {
	dir, err := os.MkdirTemp("", "berth-bench-book-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	s := &server{dir: dir}
	result := &Ready{}
	if result.JSONMegabytes, err = s.write(); err != nil {
		return nil, fmt.Errorf("write the answers: %w", err)
	}
	listener := httptest.NewServer(s)
	defer listener.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	book, err := open(&rest.Config{Host: listener.URL, QPS: -1})
	if err != nil {
		return nil, err
	}
	ready := make(chan struct{})
	book.OnChange(func(change ipam.Change) {
		if change.Everything {
			select {
			case <-ready:
			default:
				close(ready)
			}
		}
	})
	before, computed, start := heap(), cpu(), time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		book.Run(ctx)
	}()
	select {
	case <-ready:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the book: %w", ctx.Err())
	}
	result.Seconds, result.CPUSeconds = time.Since(start).Seconds(), (cpu() - computed).Seconds()
	result.BytesPerAddress = float64(heap()-before) / InUse
	result.How = s.how()
	cancel()
	<-done
	return result, nil
}

// server answers LIST and WATCH of Berth's objects from files.
type server struct {
	dir   string
	asked chan string
}

// write makes the files: a list and a stream of events per resource.
func (s *server) write() (megabytes float64, err error) {
	s.asked = make(chan string, 100)
	var objects, ips []any
	for _, pool := range poolObjects() {
		pool.TypeMeta = metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "IPPool"}
		objects = append(objects, pool)
	}
	inUse(func(i int, pool string) { ips = append(ips, floatingIP(i, pool)) })
	var size int64
	for _, kind := range []struct {
		resource, kind string
		objects        []any
	}{{"ippools", "IPPool", objects}, {"floatingips", "FloatingIP", ips}, {"ipclaims", "IPClaim", nil}} {
		meta := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"resourceVersion":"1000000"`, v1alpha1.SchemeGroupVersion, kind.kind+"List")
		n, err := s.file(kind.resource+".list", meta+`},"items":[`, ",", "]}", kind.objects, func(object any) any { return object })
		if err != nil {
			return 0, err
		}
		size += n
		bookmark := fmt.Sprintf(`{"type":"BOOKMARK","object":{"apiVersion":%q,"kind":%q,"metadata":{"resourceVersion":"1000000","annotations":{%q:"true"}}}}`+"\n",
			v1alpha1.SchemeGroupVersion, kind.kind, metav1.InitialEventsAnnotationKey)
		separator := "\n"
		if len(kind.objects) > 0 {
			bookmark = separator + bookmark
		}
		if _, err := s.file(kind.resource+".watch", "", separator, bookmark, kind.objects, func(object any) any {
			return map[string]any{"type": "ADDED", "object": object}
		}); err != nil {
			return 0, err
		}
	}
	return float64(size) / 1e6, nil
}

func (s *server) file(name, head, separator, tail string, objects []any, wrap func(any) any) (int64, error) {
	file, err := os.Create(filepath.Join(s.dir, name))
	if err != nil {
		return 0, err
	}
	w := bufio.NewWriter(file)
	_, _ = w.WriteString(head) // Flush tells of errors
	for i, object := range objects {
		if i > 0 {
			_, _ = w.WriteString(separator)
		}
		text, err := json.Marshal(wrap(object))
		if err != nil {
			return 0, errors.Join(err, file.Close())
		}
		_, _ = w.Write(text)
	}
	_, _ = w.WriteString(tail)
	err = w.Flush()
	size, seekErr := file.Seek(0, io.SeekCurrent)
	return size, errors.Join(err, seekErr, file.Close())
}

func floatingIP(i int, pool string) *v1alpha1.FloatingIP {
	r := record(i, pool)
	since := metav1.Unix(1_700_000_000, 0)
	return &v1alpha1.FloatingIP{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "FloatingIP"},
		ObjectMeta: metav1.ObjectMeta{
			Name: v1alpha1.NameOf(r.Addr), UID: types.UID(r.UID), ResourceVersion: fmt.Sprint(r.Version), Generation: 1, CreationTimestamp: since,
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "berth-scheduler", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: v1alpha1.SchemeGroupVersion.String(),
				Time: &since, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{".":{},"f:address":{},"f:network":{".":{},"f:gateway":{},"f:subnet":{}},"f:node":{},"f:owner":{},"f:pod":{},"f:pool":{},"f:releasePolicy":{},"f:since":{}}}`)}},
		},
		Spec: v1alpha1.FloatingIPSpec{
			Address: r.Addr.String(), Pool: pool, Network: &v1alpha1.Network{Subnet: "10.0.0.0/24", Gateway: "10.0.0.254"},
			Owner: &v1alpha1.Owner{APIVersion: r.Owner.APIVersion, Kind: r.Owner.Kind, Namespace: r.Owner.Namespace, Name: r.Owner.Name, UID: types.UID(r.Owner.UID), PodName: r.Owner.PodName},
			Pod:   &v1alpha1.PodReference{Name: r.PodName, UID: types.UID(r.PodUID)}, Node: fmt.Sprintf("node-%d", i%5000),
			ReleasePolicy: v1alpha1.ReleaseRetain, Since: &since,
		},
	}
}

// ServeHTTP answers LIST, WATCH that begins with everything, and WATCH of what
// is to come, which is nothing.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := path.Base(r.URL.Path)
	query := r.URL.Query()
	w.Header().Set("Content-Type", "application/json")
	watch := query.Get("watch") == "true" || query.Get("watch") == "1"
	if !watch {
		s.note(resource, "LIST")
		http.ServeFile(w, r, filepath.Join(s.dir, resource+".list"))
		return
	}
	if query.Get("sendInitialEvents") == "true" {
		s.note(resource, "WATCH")
		file, err := os.Open(filepath.Join(s.dir, resource+".watch"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		defer file.Close()
		if _, err := io.Copy(w, file); err != nil {
			return // the client is gone
		}
	}
	if flusher, ok := w.(http.Flusher); ok {
		flusher.Flush()
	}
	<-r.Context().Done()
}

func (s *server) note(resource, how string) {
	if resource == "floatingips" {
		s.asked <- how
	}
}

// how the addresses were asked for.
func (s *server) how() string { return <-s.asked }
