// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/inquiry"
)

// Inquirer answers an operator's questions about the node, in parallel. All but TakeOver change nothing.
type Inquirer interface {
	Inspect(ctx context.Context, pod string, check bool) (*inquiry.Inspection, error)
	TracePolicy(ctx context.Context, q inquiry.PolicyTrace) (string, error)
	PreviewPolicies(ctx context.Context) (*inquiry.PolicyPreview, error)
	Probe(ctx context.Context, vlan int, addrs []netip.Addr) (*inquiry.Probed, error)
	Carried() (*inquiry.Carried, error)
	TakeOver(ctx context.Context, addr netip.Addr) error
	Witness(ctx context.Context, q inquiry.WitnessQuestion) (*inquiry.Testimony, error)
}

// inquiries serves questions.
type inquiries struct{ of Inquirer }

// Inquiries returns the handler of the resources of package inquiry. Who may ask is decided before.
func Inquiries(of Inquirer) http.Handler {
	i, mux := inquiries{of}, http.NewServeMux()
	mux.HandleFunc("GET "+inquiry.PathInspect, i.serveInspect)
	mux.HandleFunc("GET "+inquiry.PathPolicyTrace, i.servePolicyTrace)
	mux.HandleFunc("GET "+inquiry.PathPolicyPreview, i.servePolicyPreview)
	mux.HandleFunc("GET "+inquiry.PathProbe, i.serveProbe)
	mux.HandleFunc("GET "+inquiry.PathCarried, i.serveCarried)
	mux.HandleFunc("GET "+inquiry.PathWitness, i.serveWitness)
	mux.HandleFunc("POST "+inquiry.PathTakeOver, i.serveTakeOver)
	return mux
}

// inspectTimeout limits one inspection.
const inspectTimeout = 30 * time.Second

func (i inquiries) serveInspect(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	check, err := strconv.ParseBool(cmp.Or(query.Get("check"), "false"))
	if err != nil {
		http.Error(w, fmt.Sprintf("check=%q is neither true nor false", query.Get("check")), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), inspectTimeout)
	defer cancel()
	inspection, err := i.of.Inspect(ctx, query.Get("pod"), check)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(inspection); err != nil {
		klog.FromContext(ctx).V(2).Info("The caller did not take the inspection", "err", err)
	}
}

func (i inquiries) serveProbe(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	vlan, err := vlanOf(query)
	addrs, other := addresses(query, "address")
	if err = errors.Join(err, other); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), inspectTimeout)
	defer cancel()
	probed, err := i.of.Probe(ctx, vlan, addrs)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(probed); err != nil {
		klog.FromContext(ctx).V(2).Info("The caller did not take the answers", "err", err)
	}
}

func (i inquiries) serveCarried(w http.ResponseWriter, r *http.Request) {
	carried, err := i.of.Carried()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(carried); err != nil {
		klog.FromContext(r.Context()).V(2).Info("The caller did not take the addresses", "err", err)
	}
}

func (i inquiries) serveTakeOver(w http.ResponseWriter, r *http.Request) {
	addrs, err := addresses(r.URL.Query(), "address")
	if err == nil && len(addrs) != 1 {
		err = fmt.Errorf("%d addresses: name one", len(addrs))
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := i.of.TakeOver(r.Context(), addrs[0]); err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// vlanOf returns the VLAN of a query, 0 where it has none.
func vlanOf(query url.Values) (int, error) {
	vlan, err := strconv.ParseUint(cmp.Or(query.Get("vlan"), "0"), 10, 12)
	if err != nil {
		return 0, fmt.Errorf("vlan=%q is no VLAN", query.Get("vlan"))
	}
	return int(vlan), nil
}

// addresses returns the addresses that a query has by a name.
func addresses(query url.Values, name string) ([]netip.Addr, error) {
	var addrs []netip.Addr
	for _, text := range query[name] {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("%s=%q is no address", name, text)
		}
		addrs = append(addrs, addr)
	}
	return addrs, nil
}

func (i inquiries) serveWitness(w http.ResponseWriter, r *http.Request) {
	q, err := witnessQuestion(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), inspectTimeout)
	defer cancel()
	testimony, err := i.of.Witness(ctx, q)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(testimony); err != nil {
		klog.FromContext(ctx).V(2).Info("The caller did not take the testimony", "err", err)
	}
}

// witnessQuestion reads a question about another node. It limits how much is asked: each host and address costs packets, and the
// answer has to come in time.
func witnessQuestion(query url.Values) (q inquiry.WitnessQuestion, err error) {
	q.Node = query.Get("node")
	if q.Node == "" {
		err = errors.New("node is empty: name the node that may be lost")
	}
	read := func(name string, most int) []netip.Addr {
		if n := len(query[name]); n > most {
			err = errors.Join(err, fmt.Errorf("%s is given %d times: give %d at most", name, n, most))
			return nil
		}
		addrs, bad := addresses(query, name)
		err = errors.Join(err, bad)
		return addrs
	}
	q.Hosts, q.Controls = read("host", inquiry.MostHosts), read("control", inquiry.MostHosts)
	q.Gateways, q.Addresses = read("gateway", inquiry.MostHosts), read("address", inquiry.MostAddresses)
	vlan, bad := vlanOf(query)
	q.VLAN = vlan
	return q, errors.Join(err, bad)
}

func (i inquiries) servePolicyTrace(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	port, err := strconv.ParseUint(query.Get("port"), 10, 16)
	if err != nil {
		http.Error(w, fmt.Sprintf("port=%q is no port", query.Get("port")), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), inspectTimeout)
	defer cancel()
	text, err := i.of.TracePolicy(ctx, inquiry.PolicyTrace{From: query.Get("from"), To: query.Get("to"), Port: uint16(port), Protocol: query.Get("protocol")})
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if _, err := w.Write([]byte(text)); err != nil {
		klog.FromContext(ctx).V(2).Info("The caller did not take the trace", "err", err)
	}
}

func (i inquiries) servePolicyPreview(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), inspectTimeout)
	defer cancel()
	preview, err := i.of.PreviewPolicies(ctx)
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(preview); err != nil {
		klog.FromContext(ctx).V(2).Info("The caller did not take the preview", "err", err)
	}
}
