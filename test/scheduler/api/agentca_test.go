// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/agent/answering"
	"github.com/berth-dev/berth/agent/certificate"
	"github.com/berth-dev/berth/ipam/agentca"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/proxy"
)

// authorityOf returns the key and the bundle of the cluster's agents.
func authorityOf(w *simulation.World) (key []byte, bundle []*x509.Certificate) {
	w.T.Helper()
	secret, err := w.Kube.CoreV1().Secrets(w.System).Get(w.Ctx, "berth-agent-ca", metav1.GetOptions{})
	if err != nil {
		w.T.Fatal(err)
	}
	config, err := w.Kube.CoreV1().ConfigMaps(w.System).Get(w.Ctx, "berth-agent-ca", metav1.GetOptions{})
	if err != nil {
		w.T.Fatal(err)
	}
	if bundle, err = agentca.ParseBundle([]byte(config.Data["ca.crt"])); err != nil {
		w.T.Fatal(err)
	}
	return secret.Data["ca.key"], bundle
}

// published waits until the bundle has so many authorities, and returns it with the key.
func published(w *simulation.World, n int) (key []byte, bundle []*x509.Certificate) {
	w.T.Helper()
	w.Eventually(fmt.Sprintf("wait for %d authorities of agents' certificates", n), func() error {
		if key, bundle = authorityOf(w); len(bundle) != n || len(key) == 0 {
			return fmt.Errorf("there are %d, and a key of %d bytes", len(bundle), len(key))
		}
		return nil
	})
	return key, bundle
}

// The controller fills in the authority that signs agents' certificates, once, also where two try
// at the same time and however often the manifests are applied. It is replaced as the documentation
// says. Nothing prints its key.
func TestAgentCA(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	if key, bundle := authorityOf(w); len(key)+len(bundle) > 0 {
		t.Fatalf("the manifests have an authority: a key of %d bytes, %d certificates", len(key), len(bundle))
	}
	// Both have seen that there is none.
	one, two := w.Controller(), w.Controller()
	var taps []*proxy.Tap
	for _, c := range []*simulation.Instance{one, two} {
		taps = append(taps, c.Tap(func(r *http.Request) bool { return r.Method == http.MethodPut && isAgentCA(r.URL.Path) }, proxy.BeforeRequest))
	}
	for _, tap := range taps {
		w.Await(tap)
	}
	taps[0].Pass()
	key, bundle := published(w, 1)
	taps[1].Pass()
	w.Eventually("wait for the answer to the second", func() error {
		if len(two.Seen(func(c proxy.Call) bool { return isAgentCA(c.Path) && c.Code == http.StatusConflict })) == 0 {
			return errors.New("it is not refused")
		}
		return nil
	})
	w.ApplyManifests()
	bin, err := lab.BinDir()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		// The first one makes the annotation that the second one compares with.
		apply := exec.CommandContext(w.Ctx, filepath.Join(bin, "kubectl"), "--kubeconfig", w.ControlPlane.Kubeconfig(), "apply", "-f", "../../../manifests/agent/ca.yaml")
		if out, err := apply.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", apply, err, out)
		}
	}
	three := w.Controller()
	w.Eventually("wait for a look at the Secret", func() error {
		if len(three.Seen(func(c proxy.Call) bool { return isAgentCA(c.Path) })) == 0 {
			return errors.New("there is none")
		}
		return nil
	})
	three.Kill()
	if again, certificates := authorityOf(w); !bytes.Equal(again, key) || len(certificates) != 1 || !certificates[0].Equal(bundle[0]) {
		t.Error("there is another authority after a restart and an apply")
	}

	patches := documentedPatches(t)
	patches["secret"](w)
	next, both := published(w, 2)
	if bytes.Equal(next, key) || !both[0].Equal(bundle[0]) {
		t.Errorf("the key is another: %t; the first authority is the old one: %t", !bytes.Equal(next, key), both[0].Equal(bundle[0]))
	}
	// In an emergency the old one is not believed any more.
	patches["configmap"](w)
	if _, last := published(w, 1); !last[0].Equal(both[1]) {
		t.Error("the new authority is not the only one")
	}
	for _, c := range []*simulation.Instance{one, two, three} {
		log, err := os.ReadFile(c.Log())
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range [][]byte{key, next} {
			block, _ := pem.Decode(key)
			for _, text := range []string{base64.StdEncoding.EncodeToString(block.Bytes), base64.StdEncoding.EncodeToString(key), fmt.Sprint(block.Bytes)} {
				if strings.Contains(string(log), text) {
					t.Error("a log has the key")
				}
			}
		}
	}
}

// documentedPatches returns the commands by which an administrator replaces the authority, by the
// kind of their object.
func documentedPatches(t *testing.T) map[string]func(w *simulation.World) {
	t.Helper()
	page, err := os.ReadFile("../../../docs/explanation/security.md")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]func(w *simulation.World){}
	for _, found := range regexp.MustCompile(`patch (secret|configmap) berth-agent-ca --type=json -p '(.*)'`).FindAllStringSubmatch(string(page), -1) {
		all[found[1]] = func(w *simulation.World) {
			w.T.Helper()
			var err error
			if found[1] == "secret" {
				_, err = w.Kube.CoreV1().Secrets(w.System).Patch(w.Ctx, "berth-agent-ca", types.JSONPatchType, []byte(found[2]), metav1.PatchOptions{})
			} else {
				_, err = w.Kube.CoreV1().ConfigMaps(w.System).Patch(w.Ctx, "berth-agent-ca", types.JSONPatchType, []byte(found[2]), metav1.PatchOptions{})
			}
			if err != nil {
				w.T.Fatal(err)
			}
		}
	}
	if len(all) != 2 {
		t.Fatalf("the page has the commands of %d kinds", len(all))
	}
	return all
}

func isAgentCA(path string) bool { return strings.HasSuffix(path, "/secrets/berth-agent-ca") }

// agentOn returns a client with a token of the agents' ServiceAccount, bound to a pod on a node; to
// none without a node.
func agentOn(w *simulation.World, node string) kubernetes.Interface {
	w.T.Helper()
	request := &authenticationv1.TokenRequest{}
	if node != "" {
		pod, err := w.Kube.CoreV1().Pods(w.System).Create(w.Ctx, &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "berth-agent-" + node},
			Spec:       v1.PodSpec{NodeName: node, ServiceAccountName: "berth-agent", Containers: []v1.Container{{Name: "agent", Image: "agent"}}},
		}, metav1.CreateOptions{})
		if err != nil {
			w.T.Fatal(err)
		}
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}
	}
	token, err := w.Kube.CoreV1().ServiceAccounts(w.System).CreateToken(w.Ctx, "berth-agent", request, metav1.CreateOptions{})
	if err != nil {
		w.T.Fatal(err)
	}
	config := rest.AnonymousClientConfig(w.Config)
	config.BearerToken = token.Status.Token
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		w.T.Fatal(err)
	}
	return kube
}

// asking is the name of the request that a Keeper makes last.
type asking struct {
	certificate.Requests
	name string
}

func (a *asking) Create(ctx context.Context, request *certificatesv1.CertificateSigningRequest, options metav1.CreateOptions) (*certificatesv1.CertificateSigningRequest, error) {
	made, err := a.Requests.Create(ctx, request, options)
	if err == nil {
		a.name = made.Name
	}
	return made, err
}

// The agent of a node gets the certificate of its own node from the controller, by the token that
// the kubelet brings it, and none of another node or another signer; nor does anybody else, and
// nobody for a node that is gone.
func TestAgentCertificate(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	w.Nodes(3)
	nodes := map[string]answering.Node{}
	for _, name := range []string{"node1", "node2", "node3"} {
		node, err := w.Kube.CoreV1().Nodes().Get(w.Ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		nodes[name] = answering.Node{Name: name, UID: string(node.UID)}
	}
	bundle := filepath.Join(t.TempDir(), "ca.crt")
	// ask has a Keeper ask for the certificate of a node, until the test ends.
	ask := func(as kubernetes.Interface, node answering.Node) (*certificate.Keeper, *asking) {
		t.Helper()
		asked := &asking{Requests: as.CertificatesV1().CertificateSigningRequests()}
		keeper := certificate.New(w.Ctx, certificate.Options{Bundle: bundle, File: filepath.Join(t.TempDir(), "certificate.pem"), Node: node, Requests: asked})
		ctx, stop := context.WithCancel(w.Ctx)
		ended := make(chan error, 1)
		go func() { ended <- keeper.Run(ctx) }()
		t.Cleanup(func() {
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
		return keeper, asked
	}
	request := func(as kubernetes.Interface, node answering.Node, change func(request *certificatesv1.CertificateSigningRequest)) (name string, err error) {
		t.Helper()
		made, err := as.CertificatesV1().CertificateSigningRequests().Create(w.Ctx, newRequest(t, node, change), metav1.CreateOptions{})
		if err != nil {
			return "", err
		}
		return made.Name, nil
	}
	must := func(as kubernetes.Interface, node answering.Node) string {
		t.Helper()
		name, err := request(as, node, func(*certificatesv1.CertificateSigningRequest) {})
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	one, gone := agentOn(w, "node1"), agentOn(w, "node3")
	// The API server takes a moment to enforce a policy that was just made.
	w.Eventually("wait for the policy to be enforced", func() error {
		_, err := request(one, nodes["node1"], func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.SignerName, r.Spec.Usages = certificatesv1.KubeAPIServerClientSignerName, []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth}
		})
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "of the signer berth.dev/agent only") {
			return fmt.Errorf("an agent asks for a certificate of the API server's users: %w", err)
		}
		return nil
	})
	refused := map[string]string{
		must(gone, nodes["node3"]):            "there is no node node3 with UID " + nodes["node3"].UID + " any more",
		must(one, nodes["node2"]):             `and the token names node node1 with UID ` + nodes["node1"].UID,
		must(agentOn(w, ""), nodes["node1"]):  "names no node",
		must(w.Kube, nodes["node1"]):          "names no node",
		must(impersonated(w), nodes["node1"]): "jane is no agent",
	}
	if err := w.Kube.CoreV1().Nodes().Delete(w.Ctx, "node3", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	keeper, _ := ask(one, nodes["node1"])
	thief, stolen := ask(one, nodes["node2"])

	w.Controller()
	_, authorities := published(w, 1)
	if err := os.WriteFile(bundle, agentca.FormatBundle(authorities), 0o600); err != nil {
		t.Fatal(err)
	}
	w.Eventually("wait for the certificate of node1", func() error {
		_, err := keeper.Codec()
		return err
	})
	for name, why := range refused {
		w.Eventually("wait for a refusal", func() error { return deniedBecause(w, name, why) })
	}
	w.Eventually("wait for a refusal of the other node's name", func() error {
		return deniedBecause(w, stolen.name, "and the token names node node1")
	})
	if codec, err := thief.Codec(); err == nil {
		t.Errorf("the agent of node1 has a certificate of node2: %v", codec)
	}
}

// newRequest returns a request of an agent.
func newRequest(t *testing.T, node answering.Node, change func(request *certificatesv1.CertificateSigningRequest)) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(nil, &x509.CertificateRequest{Subject: agentca.Subject(node.Name, node.UID)}, key)
	if err != nil {
		t.Fatal(err)
	}
	request := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "by-test-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: agentca.SignerName, Usages: agentca.Usages(),
		},
	}
	change(request)
	return request
}

// impersonated returns a client of a user who may ask for certificates, and says that she is on
// node1.
func impersonated(w *simulation.World) kubernetes.Interface {
	w.T.Helper()
	node, err := w.Kube.CoreV1().Nodes().Get(w.Ctx, "node1", metav1.GetOptions{})
	if err != nil {
		w.T.Fatal(err)
	}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "requests"}, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{certificatesv1.GroupName}, Resources: []string{"certificatesigningrequests"}, Verbs: []string{"create"},
	}}}
	if _, err := w.Kube.RbacV1().ClusterRoles().Create(w.Ctx, role, metav1.CreateOptions{}); err != nil {
		w.T.Fatal(err)
	}
	w.Bind("requests", "jane")
	config := rest.CopyConfig(w.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "jane", Extra: map[string][]string{
		"authentication.kubernetes.io/node-name": {"node1"}, "authentication.kubernetes.io/node-uid": {string(node.UID)},
	}}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		w.T.Fatal(err)
	}
	return kube
}

// deniedBecause returns an error until a request is denied, for a reason.
func deniedBecause(w *simulation.World, name, why string) error {
	request, err := w.Kube.CertificatesV1().CertificateSigningRequests().Get(w.Ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if len(request.Status.Certificate) > 0 {
		w.T.Fatalf("request %s is signed", name)
	}
	for _, c := range request.Status.Conditions {
		if c.Type == certificatesv1.CertificateDenied && strings.Contains(c.Message, why) {
			return nil
		}
	}
	return fmt.Errorf("its conditions are %+v, want %q", request.Status.Conditions, why)
}
