// SPDX-License-Identifier: Apache-2.0

// Package preflight has the command preflight: what an installation would find in a cluster and on
// each of its nodes.
package preflight

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/berth-dev/berth/cmd/internal/build"
	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
)

const long = `Says before an installation what would keep Berth from its work, and which values of the chart to set: the version of
Kubernetes, and on each node its kernel, uplink, firewall, the network of pods without a floating IP and the folders of
the runtime, kube-proxy's mode, how network policies would be enforced, and the agent's port. Pools, of a file or of the
cluster, are compared with the nodes and with the networks of pods and Services.

A pod of the agent's image runs on each node for some seconds, in a namespace that is deleted afterwards. It is in the
node's network with the agent's capabilities, reads the node's files, and changes nothing.`

const examples = `  # Before helm install
  kubectl berth preflight -f pools.yaml

  # With the image of your registry, and the uplinks of your nodes
  kubectl berth preflight --image registry.example.com/berth/berth-agent:v0.1.0 --uplink 'bond0,ens*f0'`

const kind = "PreflightReport"

type report struct {
	Kubernetes string          `json:"kubernetes"`
	Nodes      []Node          `json:"nodes"`
	Problems   answer.Problems `json:"problems"`
}

type Node struct {
	Name string `json:"name"`
	agentpod.Preflight
}

type options struct {
	file, image, uplink string
	timeout             time.Duration
}

func New() command.Command {
	var o options
	var own []v1alpha1.IPPool
	return command.Command{
		Use: "preflight", Short: "Says before an installation what would be in its way", Long: long, Example: examples, Found: "there is a problem",
		Flags: func(flags *pflag.FlagSet) {
			flags.StringVarP(&o.file, "filename", "f", "", "File with the IPPools that you are going to make; - is stdin. By default the pools of the cluster, if it has any.")
			flags.StringVar(&o.image, "image", "", "Image of the agent. By default that of this program's release.")
			flags.StringVar(&o.uplink, "uplink", "", "The agent's flag --uplink, if you are going to set it.")
			flags.DurationVar(&o.timeout, "timeout", 2*time.Minute, "How long the pods may take.")
		},
		Prepare: func(call *command.Call) (err error) {
			if version := build.Version(); o.image == "" {
				// Other versions than a release's have a commit behind a hyphen.
				if !strings.HasPrefix(version, "v") || strings.Contains(version, "-") {
					return fmt.Errorf("this program is of no release (its version is %s): name the agent's image with --image", version)
				}
				o.image = "ghcr.io/berth-dev/berth-agent:" + version
			}
			if o.file != "" {
				own, err = readPools(call, o.file)
			}
			return err
		},
		Answer: func(ctx context.Context, call *command.Call) (*answer.Answer, error) {
			r, err := o.look(ctx, call, own)
			if err != nil {
				return nil, err
			}
			return r.answer(), answer.Outcome(len(r.Problems), nil)
		},
	}
}

func readPools(call *command.Call, name string) ([]v1alpha1.IPPool, error) {
	text, err := call.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var all []v1alpha1.IPPool
	for documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		var pool v1alpha1.IPPool
		if err = documents.Decode(&pool); err != nil {
			break
		}
		if pool.Kind == "IPPool" {
			all = append(all, pool)
		}
	}
	if !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%s has no IPPool", name)
	}
	return all, nil
}

func (o options) look(ctx context.Context, call *command.Call, own []v1alpha1.IPPool) (*report, error) {
	r := &report{Nodes: []Node{}, Problems: answer.Problems{}}
	if err := r.version(call); err != nil {
		return nil, err
	}
	nodes, err := call.Nodes(ctx, v1.LabelOSStable+"=linux")
	if err != nil {
		return nil, err
	}
	if err := r.nodes(ctx, call, o, nodes); err != nil {
		return nil, err
	}
	if own == nil {
		// Without Berth's kinds there are none.
		if pools, err := call.Berth.IPPools.List(ctx, metav1.ListOptions{}); err == nil {
			own = pools.Items
		}
	}
	return r, r.pools(ctx, call, own, nodes)
}

// The minors of Kubernetes that releases are tried with, as docs/reference/compatibility.md says.
const oldest, newest = 35, 37

func (r *report) version(call *command.Call) error {
	version, err := call.Kube.Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("ask for the version of Kubernetes: %w", err)
	}
	r.Kubernetes = version.GitVersion
	minor, err := strconv.Atoi(strings.TrimRight(version.Minor, "+"))
	if err != nil || version.Major != "1" || minor < oldest || minor > newest {
		r.Problems.Add("", "Kubernetes is %s; Berth was tried with 1.%d to 1.%d", version.GitVersion, oldest, newest)
	}
	return nil
}

func (r *report) pools(ctx context.Context, call *command.Call, all []v1alpha1.IPPool, nodes []v1.Node) error {
	taken := map[netip.Prefix]string{}
	take := func(text, of string) {
		if network, err := netip.ParsePrefix(text); err == nil {
			taken[network] = of
		}
	}
	services, err := call.Kube.NetworkingV1().ServiceCIDRs().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list ServiceCIDRs: %w", err)
	}
	for _, s := range services.Items {
		for _, text := range s.Spec.CIDRs {
			take(text, "the network of Services")
		}
	}
	for _, n := range nodes {
		for _, text := range n.Spec.PodCIDRs {
			take(text, "the network of pods of "+n.Name)
		}
	}
	for i := range all {
		pool, err := pools.Alone(&all[i])
		if err != nil {
			r.Problems.Add("", "pool %s: %v", all[i].Name, err)
			continue
		}
		for _, network := range slices.SortedFunc(maps.Keys(taken), netip.Prefix.Compare) {
			if network.Overlaps(pool.Subnet) {
				r.Problems.Add("", "pool %s: its subnet %s overlaps with %s, %s", pool.Name, pool.Subnet, taken[network], network)
			}
		}
		if !slices.ContainsFunc(nodes, func(n v1.Node) bool { return pool.Serves(&n) }) {
			r.Problems.Add("", "pool %s serves no node: none has an InternalIP in its nodeSubnets and the labels of its nodeSelector", pool.Name)
		}
		r.addresses(pool)
	}
	return nil
}

func (r *report) addresses(pool *pools.Pool) {
	for _, n := range r.Nodes {
		for _, own := range n.Addresses {
			switch {
			case pool.Ranges.Contains(own.Addr()):
				r.Problems.Add("leave it out: spec.exclude of the pool", "pool %s has the address %s of node %s", pool.Name, own.Addr(), n.Name)
			case own.Addr() == pool.Gateway:
				r.Problems.Add("", "pool %s: its gateway %s is node %s itself", pool.Name, pool.Gateway, n.Name)
			}
		}
	}
}

func (r *report) answer() *answer.Answer {
	table := answer.NewTable("Node", "Kernel", "Uplink", "Network of other pods", "kube-proxy", "Policies")
	for _, n := range r.Nodes {
		table.Add(n.Name, n.Kernel, n.Uplink, n.Network, n.KubeProxy, n.Policies)
	}
	return &answer.Answer{Table: table, Kind: kind, Content: r, Text: func(out io.Writer, paint answer.Paint) {
		answer.PrintProblems(out, paint, r.Problems, nil, "Nothing is in the way of Berth.")
	}}
}

// folders are what the agent has of the node: who needs more needs agent.hostRoot=true.
var folders = []string{"/etc/cni/net.d", "/opt/cni/bin", "/var/lib/cni", "/run/flannel"}

// nodes looks at each node with a pod, in a namespace that is deleted in the end.
func (r *report) nodes(ctx context.Context, call *command.Call, o options, all []v1.Node) (err error) {
	namespace := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "berth-preflight-", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "privileged"}}}
	namespace, err = call.Kube.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("make a namespace for the pods that look at nodes: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if gone := call.Kube.CoreV1().Namespaces().Delete(ctx, namespace.Name, metav1.DeleteOptions{}); gone != nil {
			err = errors.Join(err, fmt.Errorf("delete the namespace %s: %w", namespace.Name, gone))
		}
	}()
	pods := call.Kube.CoreV1().Pods(namespace.Name)
	fmt.Fprintf(call.ErrOut, "Looks at %d nodes, with pods in namespace %s.\n", len(all), namespace.Name)
	made, err := runOn(ctx, pods, o, all)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(made)) {
		node := Node{Name: name}
		said, err := pods.GetLogs(made[name].Name, &v1.PodLogOptions{}).DoRaw(ctx)
		if err == nil {
			err = json.Unmarshal(said, &node.Preflight)
		}
		if err != nil {
			r.Problems.Add("", "%s was not looked at: %s", name, why(made[name], said))
		}
		for _, p := range node.Problems {
			r.Problems.Add(p.Do, "%s: %s", name, p.Text)
		}
		r.Nodes = append(r.Nodes, node)
	}
	return nil
}

// runOn makes a pod on each node, and returns their last states when all ended, or time is over.
func runOn(ctx context.Context, pods typed.PodInterface, o options, all []v1.Node) (map[string]*v1.Pod, error) {
	made := map[string]*v1.Pod{}
	// The controller of ServiceAccounts may not have made the namespace's yet.
	err := wait.PollUntilContextTimeout(ctx, time.Second, o.timeout, true, func(ctx context.Context) (bool, error) {
		for _, n := range all {
			if made[n.Name] != nil {
				continue
			}
			pod, err := pods.Create(ctx, podOn(n.Name, o), metav1.CreateOptions{})
			if err != nil {
				return false, nil //nolint:nilerr // again
			}
			made[n.Name] = pod
		}
		return true, nil
	})
	if err != nil {
		return nil, fmt.Errorf("make the pods that look at nodes: %w", err)
	}
	_ = wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, o.timeout, true, func(ctx context.Context) (bool, error) {
		list, err := pods.List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, nil //nolint:nilerr // again
		}
		ended := true
		for i := range list.Items {
			pod := &list.Items[i]
			made[pod.Spec.NodeName] = pod
			ended = ended && (pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed)
		}
		return ended, nil
	})
	return made, ctx.Err()
}

func why(pod *v1.Pod, said []byte) string {
	for _, c := range pod.Status.ContainerStatuses {
		switch {
		case c.State.Waiting != nil:
			return c.State.Waiting.Reason + ": " + c.State.Waiting.Message
		case c.State.Terminated != nil:
			return fmt.Sprintf("its pod ended with %d: %s", c.State.Terminated.ExitCode, said)
		}
	}
	return "its pod is " + string(pod.Status.Phase) + " " + pod.Status.Message
}

// podOn returns the pod that looks at a node: whatever taints the node has, without a network of
// its own, and with the agent's capabilities, because it tries things as the agent does: iptables
// in a network namespace that it makes.
func podOn(node string, o options) *v1.Pod {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "node-"},
		Spec: v1.PodSpec{
			NodeName: node, HostNetwork: true, RestartPolicy: v1.RestartPolicyNever, AutomountServiceAccountToken: new(false),
			TerminationGracePeriodSeconds: new(int64(0)), Tolerations: []v1.Toleration{{Operator: v1.TolerationOpExists}},
			Containers: []v1.Container{{
				Name: "preflight", Image: o.image, ImagePullPolicy: v1.PullIfNotPresent,
				Command: []string{"/berth-agent", "preflight", "--uplink=" + o.uplink},
				Env:     []v1.EnvVar{{Name: "HOST_IP", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "status.hostIP"}}}},
				SecurityContext: &v1.SecurityContext{
					ReadOnlyRootFilesystem: new(true), AllowPrivilegeEscalation: new(false), RunAsUser: new(int64(0)),
					Capabilities: &v1.Capabilities{Drop: []v1.Capability{"ALL"}, Add: []v1.Capability{"NET_ADMIN", "NET_RAW", "SYS_ADMIN"}},
				},
			}},
		},
	}
	mount := func(name, path, at string) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: path}}})
		c := &pod.Spec.Containers[0]
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: name, MountPath: at, ReadOnly: true})
	}
	mount("host", "/", "/host")
	for i, folder := range folders {
		mount(fmt.Sprint("folder-", i), folder, folder)
	}
	return pod
}
