// SPDX-License-Identifier: Apache-2.0

package mover

import (
	"encoding/json"
	"net/http"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam/failover/status"
)

// maxResume limits the body of a request, in bytes: names of 5,000 nodes take less.
const maxResume = 2 << 20

// Handler serves the resources of package status. Who may see them is decided before.
func (m *Mover) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+status.PathStatus, func(w http.ResponseWriter, r *http.Request) { m.answer(w, r) })
	mux.HandleFunc("POST "+status.PathResume, func(w http.ResponseWriter, r *http.Request) {
		var of status.Resume
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxResume)).Decode(&of); err != nil {
			http.Error(w, "read the nodes that are lost: "+err.Error(), http.StatusBadRequest)
			return
		}
		if !m.Resume(of.Nodes) {
			http.Error(w, "this replica does not lead: ask the others", http.StatusConflict)
			return
		}
		klog.FromContext(r.Context()).Info("A user ended the brake", "nodes", of.Nodes)
		m.answer(w, r)
	})
	return mux
}

func (m *Mover) answer(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(m.Status()); err != nil {
		klog.FromContext(r.Context()).V(2).Info("Did not answer", "path", r.URL.Path, "err", err)
	}
}
