// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/component-helpers/node/util/sysctl"
	"k8s.io/kubernetes/pkg/proxy/ipvs"
	"k8s.io/kubernetes/pkg/proxy/ipvs/ipset"
	ipvsutil "k8s.io/kubernetes/pkg/proxy/ipvs/util"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"
	"k8s.io/kubernetes/pkg/util/iptables"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/agent/netnstest"
)

// service is a Service and its one endpoint.
type service struct {
	Name, ClusterIP, Endpoint string
	Port, NodePort            int32
	// Local is its externalTrafficPolicy: the endpoint sees the client.
	Local bool
}

// settings are the settings of a kube-proxy.
type settings struct {
	MasqueradeAll bool
	Prefix        string // of interfaces of the node's own pods; empty means that all pods are
	Services      []service
}

// environment has the settings for a process that is a kube-proxy.
const environment = "BERTH_TEST_KUBE_PROXY"

// started is the line that it logs when the kernel has its rules.
const started = "kube-proxy has started"

func TestMain(m *testing.M) {
	text := os.Getenv(environment)
	if text == "" {
		os.Exit(m.Run())
	}
	var s settings
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		panic(err)
	}
	if err := s.run(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// run is a kube-proxy in the network namespace of this process. It ends with its standard
// input.
func (s settings) run() error {
	detector := proxyutil.NewNoOpLocalDetector()
	if s.Prefix != "" {
		detector = proxyutil.NewDetectLocalByInterfaceNamePrefix(s.Prefix)
	}
	proxier, err := ipvs.NewProxier(context.Background(), v1.IPv4Protocol, iptables.New(iptables.ProtocolIPv4), ipvsutil.New(), ipset.New(), sysctl.New(),
		30*time.Second, 0, nil, false, 0, 0, 0, s.MasqueradeAll, 14, detector, nodeName, net.ParseIP(nodeAddress), nil, nil, "", nil, false)
	if err != nil {
		return fmt.Errorf("make the proxier: %w", err)
	}
	for _, item := range s.Services {
		proxier.OnServiceAdd(item.service())
		proxier.OnEndpointSliceAdd(item.slice())
	}
	proxier.OnServiceSynced()
	proxier.OnEndpointSlicesSynced()
	fmt.Println(started)
	_, err = os.Stdin.Read(make([]byte, 1))
	_ = err // the test has ended
	return nil
}

func (s service) service() *v1.Service {
	policy := v1.ServiceExternalTrafficPolicyCluster
	if s.Local {
		policy = v1.ServiceExternalTrafficPolicyLocal
	}
	return &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: s.Name, Namespace: "default"},
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeNodePort, ClusterIP: s.ClusterIP, ClusterIPs: []string{s.ClusterIP}, IPFamilies: []v1.IPFamily{v1.IPv4Protocol},
			InternalTrafficPolicy: ptr.To(v1.ServiceInternalTrafficPolicyCluster), ExternalTrafficPolicy: policy,
			SessionAffinity: v1.ServiceAffinityNone,
			Ports:           []v1.ServicePort{{Protocol: v1.ProtocolTCP, Port: s.Port, TargetPort: intstr.FromInt32(podPort), NodePort: s.NodePort}},
		},
	}
}

func (s service) slice() *discovery.EndpointSlice {
	return &discovery.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: s.Name, Namespace: "default", Labels: map[string]string{discovery.LabelServiceName: s.Name}},
		AddressType: discovery.AddressTypeIPv4,
		Endpoints:   []discovery.Endpoint{{Addresses: []string{s.Endpoint}, Conditions: discovery.EndpointConditions{Ready: ptr.To(true)}, NodeName: s.node()}},
		Ports:       []discovery.EndpointPort{{Name: ptr.To(""), Protocol: ptr.To(v1.ProtocolTCP), Port: ptr.To[int32](podPort)}},
	}
}

// node is where the endpoint runs. kube-proxy masquerades what a pod of its own node sends to
// itself.
func (s service) node() *string {
	if s.Endpoint == outside {
		return ptr.To("elsewhere")
	}
	return ptr.To(nodeName)
}

// start runs a kube-proxy on a node until the test ends.
func (s settings) start(t *testing.T, node *netnstest.Host) {
	t.Helper()
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), environment+"="+string(text))
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	// /proc/self/exe is of the process that starts it.
	node.Run(cmd.Start)
	t.Cleanup(func() {
		_ = input.Close()
		_ = cmd.Wait()
	})
	said := make([]byte, 500)
	n, _ := output.Read(said)
	if got := string(said[:n]); got != started+"\n" {
		t.Fatalf("kube-proxy says %q", got)
	}
}
