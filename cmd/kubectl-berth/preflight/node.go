// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	typed "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
)

// folders are what the agent's container has of the node: networks that need more need agent.hostRoot=true.
var folders = []string{"/etc/cni/net.d", "/opt/cni/bin", "/var/lib/cni", "/run/flannel"}

// nodes looks at each node with a pod of the agent's image, in a namespace that is deleted in the end.
func (r *Report) nodes(ctx context.Context, call *command.Call, o options, all []v1.Node) (err error) {
	namespace := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "berth-preflight-", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "privileged"}}}
	namespace, err = call.Kube.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("make a namespace for the pods that look at nodes: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		gone := call.Kube.CoreV1().Namespaces().Delete(ctx, namespace.Name, metav1.DeleteOptions{})
		if gone != nil {
			gone = fmt.Errorf("delete the namespace %s: %w", namespace.Name, gone)
		}
		err = errors.Join(err, gone)
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
			r.problem("", "%s was not looked at: %s", name, why(made[name], said))
		}
		for _, p := range node.Problems {
			r.Problems = append(r.Problems, answer.Problem{Text: name + ": " + p.Text, Command: p.Do})
		}
		r.Nodes = append(r.Nodes, node)
	}
	return nil
}

// runOn makes a pod on each node, and returns them when all have ended, or by their last state where they do not end in time.
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

// why says why a pod printed nothing that can be read.
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

// podOn returns the pod that looks at a node: whatever taints the node has, without a network of its own, and with the agent's
// capabilities, because it tries things as the agent does: iptables in a network namespace that it makes.
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
