// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/ipam/agentpod"
)

// AnsweringAgents makes the pods of ready agents on nodes, which answer the controller through the
// API server's proxy: they carry the addresses that w.Carried returns, or the ones of the live pods
// that are bound to the node. An error is an agent that does not answer. w.Witnessed has what they
// hear of other nodes.
func (w *World) AnsweringAgents(nodes ...string) {
	w.T.Helper()
	at := w.serveAgents(http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
		node, err := audienceOf(request.Header.Get(agentpod.TokenHeader))
		if err == nil && request.URL.Path == inquiry.PathWitness && w.Witnessed != nil {
			_ = json.NewEncoder(writer).Encode(w.Witnessed(request.URL.Query().Get("node")))
			return
		}
		if err != nil || request.URL.Path != inquiry.PathCarried {
			http.Error(writer, fmt.Sprint("asked for ", request.URL.Path, ": ", err), http.StatusUnauthorized)
			return
		}
		carried := w.Carried
		if carried == nil {
			carried = w.Kubelets.Carried
		}
		addrs, err := carried(node)
		if err != nil {
			http.Error(writer, err.Error(), http.StatusInternalServerError)
			return
		}
		said := inquiry.Carried{Addresses: []inquiry.CarriedAddress{}}
		for _, addr := range addrs {
			said.Addresses = append(said.Addresses, inquiry.CarriedAddress{Address: addr})
		}
		_ = json.NewEncoder(writer).Encode(said)
	}))
	pods := w.Kube.CoreV1().Pods(w.System)
	for _, node := range nodes {
		// The agent of an earlier call answered at another port.
		err := pods.Delete(w.Ctx, "berth-agent-"+node, *metav1.NewDeleteOptions(0))
		if err != nil && !apierrors.IsNotFound(err) {
			w.T.Fatal(err)
		}
		pod, err := pods.Create(w.Ctx, &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "berth-agent-" + node, Labels: agentpod.Labels()},
			Spec: v1.PodSpec{
				NodeName: node, HostNetwork: true, Tolerations: []v1.Toleration{{Operator: v1.TolerationOpExists}},
				Containers: []v1.Container{{
					Name: "agent", Image: "agent", Ports: []v1.ContainerPort{{ContainerPort: int32(at.Port()), HostPort: int32(at.Port())}},
				}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			w.T.Fatal(err)
		}
		patch := fmt.Appendf(nil, `{"status":{"phase":"Running","podIP":%q,"podIPs":[{"ip":%q}],"conditions":[{"type":"Ready","status":"True"}]}}`, at.Addr(), at.Addr())
		if _, err := pods.Patch(w.Ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
			w.T.Fatal(err)
		}
	}
}

// serveAgents has a handler answer until the test ends, and returns where.
func (w *World) serveAgents(handler http.Handler) netip.AddrPort {
	w.T.Helper()
	if w.virtual != nil {
		w.virtual.Agents(handler)
		return netip.MustParseAddrPort("192.0.2.1:10267")
	}
	server := httptest.NewUnstartedServer(handler)
	_ = server.Listener.Close()
	server.Listener = w.reachable()
	server.StartTLS()
	w.T.Cleanup(server.Close)
	at := server.Listener.Addr().(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

// reachable listens at an address to which the API server's proxy goes: it refuses loopback
// addresses.
func (w *World) reachable() net.Listener {
	w.T.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		w.T.Fatal(err)
	}
	for _, address := range addresses {
		if own, is := address.(*net.IPNet); is && own.IP.IsGlobalUnicast() && own.IP.To4() != nil {
			listener, err := (&net.ListenConfig{}).Listen(w.Ctx, "tcp", own.IP.String()+":0")
			if err != nil {
				w.T.Fatal(err)
			}
			return listener
		}
	}
	w.T.Fatal("this machine has no address but loopback, so the API server cannot reach an agent")
	return nil
}

// audienceOf returns the node for whose agent a bearer token is. The API server made it, and the
// test does not check that.
func audienceOf(header string) (node string, err error) {
	parts := strings.Split(strings.TrimPrefix(header, "Bearer "), ".")
	if len(parts) != 3 {
		return "", fmt.Errorf("%q is no token", header)
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return "", err
	}
	var claims struct {
		Audiences []string `json:"aud"`
	}
	if err := json.Unmarshal(payload, &claims); err != nil {
		return "", err
	}
	if len(claims.Audiences) != 1 {
		return "", fmt.Errorf("the token is for %v", claims.Audiences)
	}
	node, ok := strings.CutPrefix(claims.Audiences[0], agentpod.Audience(""))
	if !ok {
		return "", fmt.Errorf("the token is for %v", claims.Audiences)
	}
	return node, nil
}
