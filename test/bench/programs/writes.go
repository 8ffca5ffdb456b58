// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/bench/load"
	"github.com/berth-dev/berth/test/bench/measure"
	"github.com/berth-dev/berth/test/bench/table"
	"github.com/berth-dev/berth/test/deploy"
)

// Writes compares what a write of a pod costs the API server with Berth's admission policies
// and without them.
type Writes struct {
	// N writes of each kind in each round.
	N, Rounds int
	// Policies whose names have one of these parts are installed; empty: all of them.
	Policies []string
}

// write is one kind of write of a pod.
type write struct {
	what string
	// as is the user who writes, in these groups; empty: the administrator.
	as     string
	groups []string
	pods   []string
	patch  string // %d: the number of the write
	sub    []string
}

// MeasureWrites returns the CPU time of the API server for writes of pods, in rounds that take
// turns with and without the admission policies.
func MeasureWrites(ctx context.Context, options Options, writes Writes) (t table.Table, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	options.Nodes = 1
	w, err := newWorld(ctx, options)
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	kinds, err := w.writes(ctx)
	if err != nil {
		return t, err
	}
	manifests, err := deploy.Manifests("admission")
	if err != nil {
		return t, err
	}
	objects := slices.DeleteFunc(manifests, func(object *unstructured.Unstructured) bool {
		return len(writes.Policies) > 0 && !slices.ContainsFunc(writes.Policies, func(part string) bool { return strings.Contains(object.GetName(), part) })
	})
	t = table.Table{
		Title: "What writes of pods cost the API server, with Berth's admission policies and without",
		Note:  fmt.Sprintf("%d writes of each kind in each of %d rounds; CPU time of the API server for one, and memory that it allocates.", writes.N, writes.Rounds),
		Rows:  table.Rows{{"write", "without, ms", "with, ms", "ratio (of the rounds)", "without, kB", "with, kB", "ratio (of the rounds)"}},
	}
	costs := map[string]map[bool][]writeCost{}
	for _, kind := range kinds {
		costs[kind.what] = map[bool][]writeCost{}
	}
	for round := range writes.Rounds * 2 {
		with := round%4 == 1 || round%4 == 2 // without, with, then the other way round
		if err := w.policies(ctx, objects, with, round); err != nil {
			return t, err
		}
		for _, kind := range kinds {
			one, err := w.measureWrites(ctx, kind, writes.N, round)
			if err != nil {
				return t, fmt.Errorf("%s: %w", kind.what, err)
			}
			costs[kind.what][with] = append(costs[kind.what][with], one)
		}
	}
	for _, kind := range kinds {
		millis := figures(costs[kind.what], "%.3f", func(c writeCost) float64 { return c.millis })
		kilobytes := figures(costs[kind.what], "%.0f", func(c writeCost) float64 { return c.kilobytes })
		t.Rows = append(t.Rows, slices.Concat([]string{kind.what}, millis, kilobytes))
	}
	return t, nil
}

// figures returns the medians of a figure without the policies and with them, and its ratios.
func figures(costs map[bool][]writeCost, format string, of func(writeCost) float64) []string {
	var without, with, ratios []float64
	var each []string
	for i, c := range costs[true] {
		without, with = append(without, of(costs[false][i])), append(with, of(c))
		ratios = append(ratios, with[i]/without[i])
		each = append(each, fmt.Sprintf("%.2f", ratios[i]))
	}
	return []string{
		fmt.Sprintf(format, median(without)), fmt.Sprintf(format, median(with)),
		fmt.Sprintf("%.2f (%s)", median(ratios), strings.Join(each, ", ")),
	}
}

// writeCost is the cost of one write.
type writeCost struct{ millis, kilobytes float64 }

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// writes makes pods that run on a node, and returns what is written to them.
func (w *world) writes(ctx context.Context) ([]write, error) {
	const pods = 50
	names := map[bool][]string{}
	for _, asks := range []bool{false, true} {
		for i := range pods {
			pod := load.Pod(profile, asks)
			pod.GenerateName, pod.Name = "", fmt.Sprintf("floating-%v-%d", asks, i)
			names[asks] = append(names[asks], pod.Name)
			if _, err := w.kube.CoreV1().Pods(measured).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
				return nil, err
			}
			binding := &v1.Binding{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: measured}, Target: v1.ObjectReference{Kind: "Node", Name: load.Node(0).Name}}
			if asks {
				binding.Annotations = map[string]string{v1alpha1.AnnotationFloatingIPs: fmt.Sprintf("172.16.0.%d", i+1)}
			}
			if err := w.kube.CoreV1().Pods(measured).Bind(ctx, binding, metav1.CreateOptions{}); err != nil {
				return nil, err
			}
		}
	}
	const status = `{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True","message":"%d"}],"containerStatuses":[{"name":"pause","image":"registry.k8s.io/pause:3.10.2","imageID":"","ready":true,"restartCount":0}]}}`
	node := write{as: "system:node:" + load.Node(0).Name, groups: []string{"system:nodes", "system:authenticated"}, sub: []string{"status"}, patch: status}
	ordinary, floating := node, node
	ordinary.what, ordinary.pods = "kubelet, status of an ordinary pod", names[false]
	floating.what, floating.pods = "kubelet, status of a pod with a floating IP", names[true]
	return []write{
		ordinary, floating,
		{what: "user, annotation of an ordinary pod", pods: names[false], patch: `{"metadata":{"annotations":{"example.com/number":"%d"}}}`},
	}, nil
}

// measureWrites returns what one write costs the API server.
func (w *world) measureWrites(ctx context.Context, kind write, n, round int) (writeCost, error) {
	config := rest.CopyConfig(w.config)
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	config.Impersonate = rest.ImpersonationConfig{UserName: kind.as, Groups: kind.groups}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return writeCost{}, err
	}
	one := func(ctx context.Context, i int) error {
		patch := fmt.Appendf(nil, kind.patch, round*(n+100)+i)
		_, err := client.CoreV1().Pods(measured).Patch(ctx, kind.pods[i%len(kind.pods)], types.StrategicMergePatchType, patch, metav1.PatchOptions{}, kind.sub...)
		return err
	}
	if err := w.parallel(ctx, 100, func(ctx context.Context, i int) error { return one(ctx, n+i) }); err != nil {
		return writeCost{}, err
	}
	before, err := w.serverMetrics(ctx)
	if err != nil {
		return writeCost{}, err
	}
	if err := w.parallel(ctx, n, one); err != nil {
		return writeCost{}, err
	}
	after, err := w.serverMetrics(ctx)
	if err != nil {
		return writeCost{}, err
	}
	between := measure.Interval{Before: before, After: after}
	return writeCost{millis: between.CPU().Seconds() * 1000 / float64(n), kilobytes: between.Allocated() / 1000 / float64(n)}, nil
}

// policies installs the admission policies or removes them, and waits until the API server follows:
// it must refuse a ConfigMap that another policy, which is made after them, refuses.
func (w *world) policies(ctx context.Context, objects []*unstructured.Unstructured, with bool, round int) error {
	admission := w.kube.AdmissionregistrationV1()
	if err := admission.ValidatingAdmissionPolicyBindings().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return err
	}
	if err := admission.ValidatingAdmissionPolicies().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return err
	}
	if with {
		if err := deploy.Apply(ctx, w.config, objects); err != nil {
			return err
		}
	}
	name := fmt.Sprintf("sentinel-%d", round)
	if _, err := admission.ValidatingAdmissionPolicies().Create(ctx, &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
				Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}}}},
			Validations: []admissionv1.Validation{{Expression: fmt.Sprintf("object.metadata.name != '%s'", name)}},
		},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	if _, err := admission.ValidatingAdmissionPolicyBindings().Create(ctx, &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	return wait.PollUntilContextCancel(ctx, poll, true, func(ctx context.Context) (bool, error) {
		_, err := w.kube.CoreV1().ConfigMaps(measured).Create(ctx, &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if apierrors.IsInvalid(err) {
			return true, nil
		}
		return false, err
	})
}
