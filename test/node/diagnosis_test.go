// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/deploy"
)

// proxied lets the API server, which runs beside the test, reach an agent: it returns an address of
// this machine that leads there. The API server's proxy refuses loopback addresses.
func proxied(t *testing.T, from *netnstest.Host, agent string) *net.TCPAddr {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range addresses {
		own, is := address.(*net.IPNet)
		if !is || !own.IP.IsGlobalUnicast() || own.IP.To4() == nil {
			continue
		}
		listener, err := net.Listen("tcp", own.IP.String()+":0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = listener.Close() })
		go forward(listener, from, agent)
		return listener.Addr().(*net.TCPAddr)
	}
	t.Skip("this machine has no address but loopback")
	return nil
}

func forward(listener net.Listener, from *netnstest.Host, to string) {
	for {
		in, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer in.Close()
			var out net.Conn
			// A socket belongs to the namespace that it was made in.
			if err := from.Try(func() (err error) { out, err = net.Dial("tcp", to); return err }); err != nil {
				return
			}
			defer out.Close()
			go func() { _, _ = io.Copy(out, in); _ = out.Close() }()
			_, _ = io.Copy(in, out)
		}()
	}
}

// diagnosed is a cluster with an agent that operators may ask.
type diagnosed struct {
	t    *testing.T
	kube *kubernetes.Clientset
	dir  string
}

// tokenOf makes a ServiceAccount, unless it is there, and returns a token of it.
func (d *diagnosed) tokenOf(name string, audiences ...string) string {
	d.t.Helper()
	accounts := d.kube.CoreV1().ServiceAccounts(deploy.Namespace)
	_, _ = accounts.Create(d.t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	token, err := accounts.CreateToken(d.t.Context(), name, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}, metav1.CreateOptions{})
	if err != nil {
		d.t.Fatal(err)
	}
	return token.Status.Token
}

// berth runs the plugin with a token.
func (d *diagnosed) berth(token string, args ...string) string {
	d.t.Helper()
	config, err := apiOf(d.t).cp.RESTConfig()
	if err != nil {
		d.t.Fatal(err)
	}
	args = append(args, "--server="+config.Host, "--certificate-authority="+config.CAFile, "--insecure-skip-tls-verify="+fmt.Sprint(config.CAFile == ""), "--token="+token, "--berth-namespace="+deploy.Namespace)
	command := exec.Command(filepath.Join(d.dir, "kubectl-berth"), args...)
	command.Env = []string{"HOME=" + d.t.TempDir()}
	out, err := command.CombinedOutput()
	return fmt.Sprintf("%s%v", out, err)
}

// An operator asks an agent through the API server with the Role berth-diagnosis, and reaches
// nothing else by it. The agent refuses who has no right, whatever way a request comes. He sees for
// which address a node waits, and ends that with his word.
func TestDiagnosis(t *testing.T) {
	t.Parallel()
	network := newNetwork(t)
	const address = "10.0.60.11"
	n := network.newNode(t, "diagnosis-a", address, "--bind-address="+address, "--secure-port=10265")
	pod := createPod(t, n.name, "diagnosed", "10.70.26.5")
	bind(t, "10.70.26.5", pod)
	own := fmt.Appendf(nil, `{"spec":{"owner":{"apiVersion":"v1","kind":"Pod","namespace":"default","name":"diagnosed","uid":%q},"pool":"web"}}`, pod.UID)
	if _, err := apiOf(t).ips.Patch(t.Context(), "10.70.26.5", types.MergePatchType, own, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	n.mustAdd(newContainer(t, "c1", pod))
	running := []byte(`{"status":{"phase":"Running","podIP":"10.70.26.5","podIPs":[{"ip":"10.70.26.5"}],"conditions":[{"type":"Ready","status":"True"}]}}`)
	if _, err := apiOf(t).kube.CoreV1().Pods("default").Patch(t.Context(), pod.Name, types.StrategicMergePatchType, running, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	config, err := apiOf(t).cp.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := deploy.Programs(t.Context(), "kubectl-berth")
	if err != nil {
		t.Fatal(err)
	}
	d := &diagnosed{t, apiOf(t).kube, dir}
	d.install(config, n.name, proxied(t, network.client, address+":10265"))

	operator, stranger := d.tokenOf("operator"), d.tokenOf("stranger")
	netnstest.Eventually(t, func() error {
		if printed := d.berth(operator, "policies"); !strings.Contains(printed, "on 1 nodes") {
			return errors.New(printed)
		}
		return nil
	})
	if printed := d.berth(stranger, "policies"); !strings.Contains(printed, "the Role berth-diagnosis in namespace berth-system allows it") || !strings.Contains(printed, "may not create serviceaccounts/token") {
		t.Errorf("a user without the Role: %s", printed)
	}

	// Both see what is on the node; what its kernel has, only who may ask the agent.
	if printed := d.berth(operator, "node", n.name); !strings.Contains(printed, "10.70.26.5") || !strings.Contains(printed, " added\n") || !strings.Contains(printed, "No problem; 1 addresses.") {
		t.Errorf("node as an operator: %s", printed)
	}
	if printed := d.berth(stranger, "node", n.name); !strings.Contains(printed, "default/diagnosed") || strings.Contains(printed, " added\n") || !strings.Contains(printed, "The agent was not asked: ") {
		t.Errorf("node as a stranger: %s", printed)
	}
	if printed := d.berth(operator, "trace", "10.70.26.5", "--node"); !strings.Contains(printed, "the node's kernel has all that the address needs") {
		t.Errorf("trace as an operator: %s", printed)
	}
	if printed := d.berth(stranger, "trace", "10.70.26.5", "--node"); !strings.Contains(printed, "may not create serviceaccounts/token") || !strings.Contains(printed, "exit status 1") {
		t.Errorf("trace as a stranger: %s", printed)
	}
	if printed := d.berth(operator, "policies", "trace", "--from=default/diagnosed", "--to=10.70.0.50", "--port=80"); !strings.Contains(printed, "Node "+n.name+":") || !strings.Contains(printed, "egress from default/diagnosed") {
		t.Errorf("policies trace by name: %s", printed)
	}
	if printed := d.berth(operator, "policies", "trace", "--from=10.70.0.50", "--to=10.70.26.5", "--port=80"); !strings.Contains(printed, "ingress to default/diagnosed") {
		t.Errorf("policies trace by address: %s", printed)
	}
	if printed := d.berth(operator, "policies", "trace", "--from=10.70.0.50", "--to=10.70.0.51", "--port=80"); !strings.Contains(printed, "neither 10.70.0.50 nor 10.70.0.51 is a pod") {
		t.Errorf("policies trace without a pod: %s", printed)
	}
	n.IP("neigh", "del", "proxy", "10.70.26.5", "dev", "eth0")
	if printed := d.berth(operator, "node", n.name); !strings.Contains(printed, "pod default/diagnosed: the kernel lacks ") || !strings.Contains(printed, "exit status 2") {
		t.Errorf("node with a hole in the kernel: %s", printed)
	}

	// The proxy leads nowhere else.
	as := func(token string) *kubernetes.Clientset {
		user := rest.AnonymousClientConfig(config)
		user.BearerToken = token
		client, err := kubernetes.NewForConfig(user)
		if err != nil {
			t.Fatal(err)
		}
		return client
	}
	get := func(client *kubernetes.Clientset, pod, path, token string) string {
		answer, err := client.CoreV1().RESTClient().Get().Namespace(deploy.Namespace).Resource("pods").Name(pod).SubResource("proxy").Suffix(path).
			SetHeader(agentpod.TokenHeader, "Bearer "+token).DoRaw(context.WithoutCancel(t.Context()))
		return fmt.Sprintf("%.900s %v", answer, err)
	}
	agent := "https:berth-agent-" + n.name + ":"
	here := d.tokenOf(agentpod.Diagnosis, agentpod.Audience(n.name))
	netnstest.Eventually(t, func() error {
		for _, other := range []struct{ pod, path string }{{agent, "/metrics"}, {agent, "/"}, {agent + "10250", "/v1/inspect"}, {"http:berth-agent-" + n.name + ":", "/v1/inspect"}, {"https:berth-controller-x:", "/v1/inspect"}} {
			if got := get(as(operator), other.pod, other.path, here); !strings.Contains(got, "let you ask agents and speakers about their nodes, and berth-failover, only") {
				return fmt.Errorf("%s%s: %s", other.pod, other.path, got)
			}
		}
		return nil
	})
	if got := get(as(operator), agent, "/v1/inspect", here); !strings.Contains(got, `"api":{"synced":true`) {
		t.Errorf("the operator asks by hand: %s", got)
	}
	if got := get(apiOf(t).kube, agent, "/healthz", ""); !strings.Contains(got, "ok") {
		t.Errorf("an administrator is limited: %s", got)
	}
	// Who is an administrator for the API server is nobody for the agent.
	if got := get(apiOf(t).kube, agent, "/v1/inspect", ""); !strings.Contains(got, "Unauthorized: send a bearer token for agent.berth.dev/"+n.name) {
		t.Errorf("a request without a token: %s", got)
	}

	// The agent decides itself: whoever reaches the node reaches its port.
	for _, tc := range []struct {
		name, token string
		code        int
		text        string
	}{
		{"no token", "", http.StatusUnauthorized, "Unauthorized"},
		{"for the API server", operator, http.StatusUnauthorized, "Unauthorized"},
		{"for another node", d.tokenOf(agentpod.Diagnosis, agentpod.Audience("diagnosis-b")), http.StatusUnauthorized, "Unauthorized"},
		{"of somebody without the right", d.tokenOf("stranger", agentpod.Audience(n.name)), http.StatusForbidden, "may not get /v1/inspect; the ClusterRole berth-diagnosis grants it"},
		{"right", here, http.StatusOK, "10.70.26.5"},
	} {
		code, text, err := askAs(network.client, address+":10265", "/v1/inspect?check=true", agentpod.TokenHeader, tc.token)
		if err != nil || code != tc.code || !strings.Contains(text, tc.text) {
			t.Errorf("%s: %d %.300s %v, want %d %s", tc.name, code, text, err, tc.code, tc.text)
		}
	}
	// It serves on no other address of the node.
	if _, _, err := askAs(n.Host, "127.0.0.1:10265", "/healthz", agentpod.TokenHeader, ""); err == nil {
		t.Error("serves on an address that it was not told")
	}
	// Who may ask may not give a person's word, and who gives that may not ask.
	decides := d.tokenOf(agentpod.Operator, agentpod.Audience(n.name))
	for _, tc := range []struct {
		method, path, token string
		code                int
		text                string
	}{
		{http.MethodPost, "/v1/take-over?address=10.70.26.99", here, http.StatusForbidden, "may not post /v1/take-over; the ClusterRole berth-failover-operator grants it"},
		{http.MethodPost, "/v1/take-over?address=10.70.26.99", decides, http.StatusUnprocessableEntity, "node " + n.name + " does not wait for the address 10.70.26.99: no pod of the node has it"},
		{http.MethodPost, "/v1/take-over?address=10.70.26.5", decides, http.StatusUnprocessableEntity, "the node answers for it already"},
		{http.MethodPost, "/v1/take-over?address=10.70.26.5", d.tokenOf(agentpod.Operator, agentpod.Audience("diagnosis-b")), http.StatusUnauthorized, "Unauthorized"},
		{http.MethodGet, "/v1/inspect", decides, http.StatusForbidden, "may not get /v1/inspect"},
	} {
		code, text, err := callAs(network.client, tc.method, address+":10265", tc.path, agentpod.TokenHeader, tc.token)
		if err != nil || code != tc.code || !strings.Contains(text, tc.text) {
			t.Errorf("%s %s: %d %.300s %v, want %d %s", tc.method, tc.path, code, text, err, tc.code, tc.text)
		}
	}
	if log := n.agent.text(); !strings.Contains(log, `"Answering" path="/v1/take-over" user="system:serviceaccount:berth-system:berth-failover-operator" token="JTI=`) {
		t.Error("the log does not say who gave his word")
	}
	if log := n.agent.text(); !strings.Contains(log, `"Answering" path="/v1/inspect" user="system:serviceaccount:berth-system:berth-diagnosis" token="JTI=`) {
		t.Error("the log does not say who asked")
	}

	// For which address a node waits, and for which host, and the end of the waiting by a person's
	// word. That takes more than to look.
	waiting := createPod(t, n.name, "waits", "10.70.26.6")
	bind(t, "10.70.26.6", waiting, func(spec *v1alpha1.FloatingIPSpec) { spec.LastNode = &v1alpha1.NodeReference{Name: "gone", UID: "u"} })
	// A host answers that does not say that it has the address itself, as a node's kernel does, or a
	// switch that suppresses ARP.
	network.client.IP("link", "add", "behind", "type", "veth", "peer", "name", "end")
	network.client.IP("link", "set", "behind", "up")
	network.client.IP("link", "set", "end", "up")
	network.client.IP("route", "add", "10.70.26.6/32", "dev", "behind")
	sysctl(network.client, "net/ipv4/ip_forward", "1")
	network.client.IP("neigh", "add", "proxy", "10.70.26.6", "dev", "eth0")
	c := newContainer(t, "waits", waiting)
	if _, err := n.add(c); err == nil || !strings.Contains(err.Error(), "still answers for 10.70.26.6") {
		t.Fatalf("ADD beside a host that answers: %v", err)
	}
	netnstest.Eventually(t, func() error {
		printed := d.berth(operator, "failover")
		for _, want := range []string{n.name + "   10.70.26.6   default/waits   Waits", "still answers for 10.70.26.6, which was on gone last", "kubectl berth failover take 10.70.26.6", "exit status 2"} {
			if !strings.Contains(printed, want) {
				return fmt.Errorf("failover lacks %q: %s", want, printed)
			}
		}
		return nil
	})
	if printed := d.berth(operator, "failover", "take", "10.70.26.6", "--yes"); !strings.Contains(printed, "the Role berth-failover-operator in namespace berth-system allows it") {
		t.Errorf("a user with the Role berth-diagnosis alone takes the address: %s", printed)
	}
	if _, err := d.kube.RbacV1().RoleBindings(deploy.Namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "decides"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "berth-failover-operator"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: deploy.Namespace, Name: "operator"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if printed := d.berth(operator, "failover", "take", "10.70.26.6"); !strings.Contains(printed, "two answers") || !strings.Contains(printed, "nothing was changed: write yes") {
		t.Errorf("take without an answer: %s", printed)
	}
	netnstest.Eventually(t, func() error {
		if printed := d.berth(operator, "failover", "take", "10.70.26.6", "--yes"); !strings.Contains(printed, "answers for 10.70.26.6 within a second") {
			return errors.New(printed)
		}
		return nil
	})
	network.client.IP("neigh", "del", "proxy", "10.70.26.6", "dev", "eth0")
	n.mustAdd(c)
}

// install makes what the chart makes for diagnosis, the agent's pod, and the user operator.
func (d *diagnosed) install(config *rest.Config, node string, at *net.TCPAddr) {
	d.t.Helper()
	ctx := d.t.Context()
	must := func(_ any, err error) {
		d.t.Helper()
		if err != nil {
			d.t.Fatal(err)
		}
	}
	for _, name := range []string{"namespace.yaml", "agent/diagnosis.yaml", "admission/diagnosis.yaml", "examples/viewer-rbac.yaml"} {
		objects, err := deploy.Manifest(name)
		must(nil, err)
		must(nil, deploy.Apply(ctx, config, objects))
	}
	pool, err := deploy.Decode([]byte("apiVersion: berth.dev/v1alpha1\nkind: IPPool\nmetadata: {name: web}\nspec: {subnet: 10.70.0.0/16, gateway: 10.70.0.1, ranges: [10.70.26.5-10.70.26.9]}\n"))
	must(nil, err)
	must(nil, deploy.Apply(ctx, config, pool))
	pods := d.kube.CoreV1().Pods(deploy.Namespace)
	name := "berth-agent-" + node
	must(pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: agentpod.Labels()},
		Spec: corev1.PodSpec{NodeName: node, HostNetwork: true, Containers: []corev1.Container{{
			Name: "agent", Image: "agent", Ports: []corev1.ContainerPort{{Name: "https", ContainerPort: int32(at.Port)}},
		}}},
	}, metav1.CreateOptions{}))
	d.t.Cleanup(func() {
		if err := d.kube.CoreV1().Nodes().Delete(ctxOf(d.t), node, metav1.DeleteOptions{}); err != nil {
			d.t.Error(err)
		}
		if err := pods.Delete(ctxOf(d.t), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
			d.t.Error(err)
		}
	})
	patch := fmt.Appendf(nil, `{"status":{"phase":"Running","podIP":%[1]q,"podIPs":[{"ip":%[1]q}],"conditions":[{"type":"Ready","status":"True"}]}}`, at.IP)
	must(pods.Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"))
	must(d.kube.RbacV1().RoleBindings(deploy.Namespace).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "operator"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: agentpod.Diagnosis},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: deploy.Namespace, Name: "operator"}},
	}, metav1.CreateOptions{}))
	// The reading commands are for both.
	must(d.kube.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "viewers"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "berth-viewer"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.GroupKind, APIGroup: rbacv1.GroupName, Name: "system:serviceaccounts:" + deploy.Namespace}},
	}, metav1.CreateOptions{}))
	must(d.kube.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}, metav1.CreateOptions{}))
}

// ask sends an HTTPS request from a host.
func ask(from *netnstest.Host, address, path, token string) (code int, text string, err error) {
	return askAs(from, address, path, "Authorization", token)
}

// askAs sends the token in a header.
func askAs(from *netnstest.Host, address, path, header, token string) (code int, text string, err error) {
	return callAs(from, http.MethodGet, address, path, header, token)
}

func callAs(from *netnstest.Host, method, address, path, header, token string) (code int, text string, err error) {
	var connection net.Conn
	// A socket belongs to the namespace that it was made in.
	if err := from.Try(func() error { connection, err = net.Dial("tcp", address); return err }); err != nil {
		return 0, "", err
	}
	defer connection.Close()
	request, err := http.NewRequest(method, "https://"+address+path, nil)
	if err != nil {
		return 0, "", err
	}
	request.Close = true
	if token != "" {
		request.Header.Set(header, "Bearer "+token)
	}
	encrypted := tls.Client(connection, &tls.Config{InsecureSkipVerify: true})
	if err := request.Write(encrypted); err != nil {
		return 0, "", err
	}
	response, err := http.ReadResponse(bufio.NewReader(encrypted), request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}
