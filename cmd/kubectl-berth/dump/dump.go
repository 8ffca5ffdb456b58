// SPDX-License-Identifier: Apache-2.0

// Package dump has the command dump, which writes a support bundle.
package dump

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/cmd/kubectl-berth/audit"
	"github.com/berth-dev/berth/cmd/kubectl-berth/check"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/galaxy"
)

const long = `Writes a bundle for a person who helps with a problem: Berth's objects, nodes, pods that have to
do with addresses, workloads, events, Berth's own programs with their logs, versions, and the
findings of "kubectl berth check".

It reads no Secrets. Of pods and workloads it keeps the fields that Berth reads, so no environment
variables, commands or volumes. Of annotations it keeps Berth's and annotations that name networks.
Logs and events are as they were written. Names and addresses stay: look at the bundle before you
give it away. The file contents.txt in it says what was left out, and why.`

const examples = `  kubectl berth dump
  kubectl berth dump -f - | tar tz`

type options struct {
	*command.Call
	file  string
	nodes bool
	lines int64
}

func New() command.Command {
	o := &options{}
	return command.Command{
		Use: "dump", Short: "Writes a support bundle without secrets", Long: long, Example: examples, Programs: true,
		Flags: func(flags *pflag.FlagSet) {
			flags.StringVarP(&o.file, "filename", "f", "", "File to write; - is stdout. By default berth-dump-TIME.tar.gz in the current folder.")
			flags.BoolVar(&o.nodes, "nodes", false, "Add what each agent knows of its node. It needs the Role berth-diagnosis of Berth's namespace.")
			flags.Int64Var(&o.lines, "log-lines", 20000, "Lines of each log.")
		},
		Run: func(ctx context.Context, call *command.Call) error {
			o.Call = call
			return o.dump(ctx)
		},
	}
}

func (o *options) dump(ctx context.Context) (err error) {
	kube, err := kubernetes.NewForConfig(o.Config) // in JSON, as it is written
	if err != nil {
		return fmt.Errorf("create the client of Kubernetes' objects: %w", err)
	}
	// Without the cluster, or the rights to anything of Berth's, there is no bundle.
	version, err := kube.Discovery().ServerVersion()
	if err != nil {
		return fmt.Errorf("ask the API server for its version: %w", err)
	}
	name := o.file
	if name == "" {
		name = "berth-dump-" + time.Now().UTC().Format("20060102-150405") + ".tar.gz"
	}
	out := o.Out
	if name != "-" {
		file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return fmt.Errorf("create the bundle: %w", err)
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		out = file
	}
	zip := gzip.NewWriter(out)
	b := &bundle{zip: zip, tar: tar.NewWriter(zip), now: time.Now()}
	b.addJSON("kubernetes/version.json", version)
	o.addObjects(ctx, b)
	pods := o.addPrograms(ctx, b, kube)
	o.addLogs(ctx, b, kube, pods)
	if o.nodes {
		o.addNodes(ctx, b, pods)
	} else {
		b.leaveOut("nodes/", "the agents' view of their nodes: --nodes adds it")
	}
	progress, end := o.Progress()
	defer end()
	if report, err := check.Run(ctx, o.Call, progress, audit.Options{Grace: grace, Agents: true}); err != nil {
		b.leaveOut("check.json", failure.Explain(err))
	} else {
		b.addJSON("check.json", map[string]any{"findings": report.Findings, "unknown": report.Unknown, "addresses": report.Addresses, "pods": report.Pods, "pools": report.Pools})
	}
	b.leaveOut("secrets", "never read")
	if err := b.close(); err != nil {
		return fmt.Errorf("write the bundle: %w", err)
	}
	for _, left := range b.left {
		fmt.Fprintln(o.ErrOut, "left out:", left)
	}
	if name != "-" {
		fmt.Fprintf(o.Out, "%s: %d files\n", name, len(b.names))
	}
	return nil
}

const grace = 10 * time.Second

type kind struct {
	file     string
	resource schema.GroupVersionResource
	keep     func(*unstructured.Unstructured) bool
	// ofPrograms: only those in the namespace of Berth's programs.
	ofPrograms bool
}

var kinds = []kind{
	{"kubernetes/nodes.yaml", v1.SchemeGroupVersion.WithResource("nodes"), nil, false},
	{"kubernetes/namespaces.yaml", v1.SchemeGroupVersion.WithResource("namespaces"), nil, false},
	{"kubernetes/pods.yaml", v1.SchemeGroupVersion.WithResource("pods"), hasAddresses, false},
	{"kubernetes/statefulsets.yaml", schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "statefulsets"}, hasAddresses, false},
	{"kubernetes/deployments.yaml", schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, hasAddresses, false},
	{"kubernetes/daemonsets.yaml", schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}, hasAddresses, false},
	{"kubernetes/events.yaml", v1.SchemeGroupVersion.WithResource("events"), isOurs, false},
	{"kubernetes/priorityclasses.yaml", schema.GroupVersionResource{Group: "scheduling.k8s.io", Version: "v1", Resource: "priorityclasses"}, nil, false},
	{"kubernetes/resourcequotas.yaml", v1.SchemeGroupVersion.WithResource("resourcequotas"), nil, false},
	{"berth-programs/configmaps.yaml", v1.SchemeGroupVersion.WithResource("configmaps"), isOfBerth, true},
	{"berth-programs/leases.yaml", schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}, isOfBerth, true},
}

func (o *options) addObjects(ctx context.Context, b *bundle) {
	berths := make([]kind, 0, len(kinds))
	for _, name := range v1alpha1.Kinds() {
		resource := v1alpha1.Resource(name)
		berths = append(berths, kind{"berth/" + resource.Resource + ".yaml", resource, nil, false})
	}
	for _, kind := range append(berths, kinds...) {
		var all []unstructured.Unstructured
		namespace := metav1.NamespaceAll
		if kind.ofPrograms {
			namespace = o.System
		}
		err := command.Each(ctx, o.Dynamic.Resource(kind.resource).Namespace(namespace).List, metav1.ListOptions{}, func(one *unstructured.Unstructured) error {
			if kind.keep == nil || kind.keep(one) {
				all = append(all, *scrub(one))
			}
			return nil
		})
		if err != nil {
			b.leaveOut(kind.file, failure.Explain(err))
			continue
		}
		b.addYAML(kind.file, all)
	}
}

func (o *options) addPrograms(ctx context.Context, b *bundle, kube kubernetes.Interface) []v1.Pod {
	// The namespace may have other programs, too.
	pods, err := kube.CoreV1().Pods(o.System).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=berth"})
	if err != nil {
		b.leaveOut("berth-programs/, logs/", failure.Explain(err))
		return nil
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		pod.ManagedFields = nil
		hide(&pod.Spec)
		b.addYAML("berth-programs/pod-"+pod.Name+".yaml", pod)
	}
	return pods.Items
}

// isOfBerth says whether an object without labels has a name that the chart gives.
func isOfBerth(object *unstructured.Unstructured) bool {
	return strings.HasPrefix(object.GetName(), "berth-")
}

func (o *options) addLogs(ctx context.Context, b *bundle, kube kubernetes.Interface, pods []v1.Pod) {
	_ = command.EachLog(pods, func(pod *v1.Pod, of v1.PodLogOptions) error { // what cannot be read is left out
		file := fmt.Sprintf("logs/%s/%s.log", pod.Name, of.Container)
		if of.Previous {
			file = fmt.Sprintf("logs/%s/%s-previous.log", pod.Name, of.Container)
		}
		of.TailLines = &o.lines
		text, err := kube.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &of).DoRaw(ctx)
		b.addEncoded(file, text, err)
		return nil
	})
}

func (o *options) addNodes(ctx context.Context, b *bundle, pods []v1.Pod) {
	for i := range pods {
		if pod := &pods[i]; agentpod.Is(pod) {
			// The answer as it is: a later agent may say more.
			text, err := o.Ports().Agent(pod)(ctx, http.MethodGet, inquiry.PathInspect, url.Values{"check": {"true"}})
			b.addEncoded("nodes/"+pod.Spec.NodeName+".json", text, err)
		}
	}
}

func hasAddresses(object *unstructured.Unstructured) bool {
	text, err := json.Marshal([]any{object.Object["spec"], object.GetAnnotations()})
	return err == nil && (strings.Contains(string(text), `"`+v1alpha1.GroupName+"/") || strings.Contains(string(text), galaxy.ResourceENIIP))
}

// isOurs says whether an event is of Berth's, or of a pod: these are in the bundle, too.
func isOurs(event *unstructured.Unstructured) bool {
	kind, _, _ := unstructured.NestedString(event.Object, "involvedObject", "kind")
	return slices.Contains([]string{"Pod", "Node", "FloatingIP", "IPPool", "IPClaim", "NetworkProfile", "NodeAssignment"}, kind)
}

var kept = []string{v1alpha1.AnnotationNetworks, v1alpha1.AnnotationNetworkStatus}

// scrub removes all fields of an object that Berth does not read. It modifies the object.
func scrub(object *unstructured.Unstructured) *unstructured.Unstructured {
	object.SetManagedFields(nil)
	object.SetAnnotations(ours(object.GetAnnotations()))
	switch object.GetKind() {
	case "Pod":
		scrubPodSpec(object.Object, "spec")
	case "StatefulSet", "Deployment", "DaemonSet":
		if template, _, _ := unstructured.NestedMap(object.Object, "spec", "template"); template != nil {
			inner := &unstructured.Unstructured{Object: template}
			inner.SetAnnotations(ours(inner.GetAnnotations()))
			scrubPodSpec(template, "spec")
			_ = unstructured.SetNestedMap(object.Object, template, "spec", "template")
		}
	}
	return object
}

func ours(annotations map[string]string) map[string]string {
	maps.DeleteFunc(annotations, func(name, _ string) bool {
		return !strings.HasPrefix(name, v1alpha1.GroupName+"/") && !slices.Contains(kept, name)
	})
	return annotations
}

// podFields and containerFields are the fields of pods that stay.
var (
	podFields       = []string{"nodeName", "schedulerName", "nodeSelector", "affinity", "tolerations", "hostNetwork", "priority", "priorityClassName", "overhead", "schedulingGates", "topologySpreadConstraints"}
	containerFields = []string{"name", "image", "resources", "ports", "restartPolicy"}
)

func scrubPodSpec(object map[string]any, field string) {
	spec, _, _ := unstructured.NestedMap(object, field)
	left := only(spec, podFields)
	for _, name := range []string{"containers", "initContainers"} {
		if containers, ok := spec[name].([]any); ok {
			all := make([]any, len(containers))
			for i := range containers {
				fields, _ := containers[i].(map[string]any)
				all[i] = only(fields, containerFields)
			}
			left[name] = all
		}
	}
	object[field] = left
}

func only(all map[string]any, names []string) map[string]any {
	left := map[string]any{}
	for _, name := range names {
		if value, ok := all[name]; ok {
			left[name] = value
		}
	}
	return left
}

func hide(spec *v1.PodSpec) {
	for _, containers := range [][]v1.Container{spec.Containers, spec.InitContainers} {
		for i := range containers {
			for j := range containers[i].Env {
				if containers[i].Env[j].Value != "" {
					containers[i].Env[j].Value = "(left out)"
				}
			}
		}
	}
}

// bundle is an archive that is being written. After an error it ignores additions.
type bundle struct {
	zip   *gzip.Writer
	tar   *tar.Writer
	now   time.Time
	names []string
	left  []string
	err   error
}

func (b *bundle) addJSON(name string, content any) {
	text, err := json.MarshalIndent(content, "", "  ")
	b.addEncoded(name, text, err)
}

func (b *bundle) addYAML(name string, content any) {
	text, err := yaml.Marshal(content)
	b.addEncoded(name, text, err)
}

// addEncoded adds a file, or notes why there is none.
func (b *bundle) addEncoded(name string, text []byte, err error) {
	if err != nil {
		b.leaveOut(name, failure.Explain(err))
		return
	}
	if b.err == nil {
		b.err = b.tar.WriteHeader(&tar.Header{Name: "berth-dump/" + name, Mode: 0o600, Size: int64(len(text)), ModTime: b.now})
	}
	if b.err == nil {
		_, b.err = b.tar.Write(text)
	}
	b.names = append(b.names, name)
}

func (b *bundle) leaveOut(what, why string) { b.left = append(b.left, what+": "+why) }

func (b *bundle) close() error {
	text := "In this bundle:\n" + strings.Join(b.names, "\n") + "\n\nLeft out:\n" + strings.Join(b.left, "\n") + "\n"
	b.addEncoded("contents.txt", []byte(text), nil)
	return errors.Join(b.err, b.tar.Close(), b.zip.Close())
}
