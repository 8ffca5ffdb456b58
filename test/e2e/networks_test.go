// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/witness"
)

const networkStatus = "k8s.v1.cni.cncf.io/network-status"

// storageNet is a bridge of each node.
const storageNet = `{"cniVersion":"1.0.0","plugins":[{"type":"bridge","bridge":"storage0","ipam":{"type":"host-local","subnet":"10.9.0.0/24"}}]}`

func naming(networks string) option {
	return func(pod *v1.Pod) {
		if pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		pod.Annotations["k8s.v1.cni.cncf.io/networks"] = networks
	}
}

// TestNetworks: pods talk over the network that their annotation names, whatever their
// first network is, and read from their annotation what it gave them. A pod that names a
// network of another namespace does not start, and its events say why.
func TestNetworks(t *testing.T) {
	s := newStage(t, "10.0.70.90-10.0.70.94")
	networks, err := deploy.NewNetworks(s.ctx, s.config)
	s.must(err)
	s.must(networks.Create(s.ctx, s.name, "storage", storageNet))
	s.must(networks.Create(s.ctx, "kube-system", "secret", storageNet))
	s.atEnd(func() { s.must(networks.Delete(s.ctx, "kube-system", "secret")) })

	floating := s.start("floating", netexec, s.floating, naming("storage"), on("node1"))
	ordinary := s.start("ordinary", netexec, naming(`[{"name":"storage","interface":"data0"}]`), on("node1"))
	addresses := map[string]string{}
	for pod, ifName := range map[*v1.Pod]string{floating: "net1", ordinary: "data0"} {
		var status []struct {
			Name, Interface string
			IPs             []string
		}
		s.must(json.Unmarshal([]byte(s.get(pod.Name).Annotations[networkStatus]), &status))
		if len(status) != 2 || status[0].IPs[0] != pod.Status.PodIP || status[1].Name != s.name+"/storage" || status[1].Interface != ifName {
			t.Fatalf("%s: network-status is %+v", pod.Name, status)
		}
		addresses[pod.Name] = status[1].IPs[0]
	}
	from, to := s.podParty(floating), s.podParty(ordinary)
	to.address = addresses[ordinary.Name]
	seen, err := from.ask(s.ctx, "http", to.address, witness.Port, "clientip")
	s.must(err)
	if source := netip.MustParseAddrPort(seen).Addr().String(); source != addresses[floating.Name] {
		t.Errorf("on the network the pod is seen as %s, want %s", source, addresses[floating.Name])
	}
	refused := s.create(s.pod("refused", naming("kube-system/secret"), on("node1")))
	t.Log(s.failsWith(refused, "may not use the networks of namespace kube-system", "--network-namespaces"))

	s.delete(floating.Name, ordinary.Name, refused.Name)
	s.agree()
	if links := s.run("node1", "ip", "-o", "link", "show", "master", "storage0"); strings.TrimSpace(links) != "" {
		t.Errorf("the deleted pods' links are left:\n%s", links)
	}
	s.run("node1", "ip", "link", "del", "storage0") // the bridge plugin leaves it
}

// TestAgentPermissions: with the token of an agent one can write the annotations of its
// node's pods and nothing else.
func TestAgentPermissions(t *testing.T) {
	s := newStage(t, "10.0.70.95-10.0.70.99")
	here := s.start("here", on("node1"), func(pod *v1.Pod) { pod.Annotations = map[string]string{"example.com/a": "b"} })
	elsewhere := s.start("elsewhere", on("node2"))
	agents, err := s.Client.CoreV1().Pods(deploy.Namespace).List(s.ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=berth-agent", FieldSelector: "spec.nodeName=node1"})
	s.must(err)
	agent := agents.Items[0]
	token, err := s.Client.CoreV1().ServiceAccounts(deploy.Namespace).CreateToken(s.ctx, "berth-agent", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: ptr.To[int64](600),
		BoundObjectRef:    &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: agent.Name, UID: agent.UID},
	}}, metav1.CreateOptions{})
	s.must(err)
	config := rest.AnonymousClientConfig(s.config)
	config.BearerToken = token.Status.Token
	client, err := kubernetes.NewForConfig(config)
	s.must(err)
	patch := func(pod *v1.Pod, patch string, subresources ...string) error {
		_, err := client.CoreV1().Pods(pod.Namespace).Patch(s.ctx, pod.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
		return err
	}
	status := fmt.Sprintf(`{"metadata":{"annotations":{%q:"[]"}}}`, networkStatus)
	s.must(patch(here, status, "status"))
	for what, err := range map[string]error{
		"a pod of another node":        patch(elsewhere, status, "status"),
		"another annotation":           patch(here, `{"metadata":{"annotations":{"berth.dev/floating-ips":"10.0.70.95"}}}`, "status"),
		"removal of an annotation":     patch(here, fmt.Sprintf(`{"metadata":{"annotations":{%q:"[]","example.com/a":null}}}`, networkStatus), "status"),
		"a label":                      patch(here, `{"metadata":{"labels":{"a":"b"}}}`, "status"),
		"the phase":                    patch(here, `{"status":{"phase":"Failed"}}`, "status"),
		"the pod, beside its status":   patch(here, status),
		"a finalizer that keeps a pod": patch(here, `{"metadata":{"finalizers":["example.com/a"]}}`, "status"),
	} {
		if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v, want forbidden", what, err)
		}
	}
}
