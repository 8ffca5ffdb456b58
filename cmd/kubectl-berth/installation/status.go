// SPDX-License-Identifier: Apache-2.0

// Package installation has the commands about Berth's own programs: how they are, and their
// versions.
package installation

import (
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/cmd/internal/build"
	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/audit"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

const statusLong = `Says whether Berth works: its programs and which replica leads, the agents that are ready of those that
are wanted, the admission policies that keep tenants and nodes in their place, and the pools. Every problem is a line
with the command to go on with.

The namespace of Berth's programs is the one of the agents' DaemonSet; --berth-namespace names another.`

const statusExamples = `  # All at a glance
  kubectl berth status

  # For a script: the exit code, and the problems
  kubectl berth status -o jsonpath='{.problems}'`

type status struct {
	Namespace         string                  `json:"namespace"`
	Programs          []program               `json:"programs"`
	AdmissionPolicies []audit.AdmissionPolicy `json:"admissionPolicies"`
	Pools             int                     `json:"pools"`
	Problems          answer.Problems         `json:"problems"`
	Unknown           []string                `json:"unknown,omitempty"`
}

type program struct {
	Name   string `json:"name"`
	Ready  int32  `json:"ready"`
	Wanted int32  `json:"wanted"`
	// Images are of the program's object. Outdated counts pods that an update has not reached.
	Images   []string `json:"images"`
	Outdated int32    `json:"outdated,omitempty"`
	// Leader is the replica that has the lease, empty for a program without one.
	Leader string `json:"leader,omitempty"`
}

func NewStatus() command.Command {
	return command.Command{
		Use: "status", Short: "Says whether Berth's programs work", Long: statusLong, Example: statusExamples, Found: "there is a problem", Programs: true,
		Answer: func(ctx context.Context, call *command.Call) (*answer.Answer, error) {
			s := &status{Namespace: call.System, Programs: []program{}, AdmissionPolicies: []audit.AdmissionPolicy{}, Problems: answer.Problems{}}
			// Parts that the user may not read are unknown.
			for of, err := range map[string]error{
				"how the programs are": s.programs(ctx, call), "whether the admission policies are there": s.admission(ctx, call), "how the pools are": s.pools(ctx, call),
			} {
				if err != nil {
					s.Unknown = append(s.Unknown, of+": "+failure.Explain(err))
				}
			}
			slices.Sort(s.Unknown)
			return s.answer(), answer.Outcome(len(s.Problems), s.Unknown)
		},
	}
}

func (s *status) kubectl(format string, args ...any) string {
	return fmt.Sprintf("kubectl -n %s "+format, append([]any{s.Namespace}, args...)...)
}

// programs looks at all programs that are there: a chart may leave some out.
func (s *status) programs(ctx context.Context, call *command.Call) error {
	ours := metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=berth"}
	deployments, err := call.Kube.AppsV1().Deployments(s.Namespace).List(ctx, ours)
	if err != nil {
		return fmt.Errorf("list the Deployments of namespace %s: %w", s.Namespace, err)
	}
	sets, err := call.Kube.AppsV1().DaemonSets(s.Namespace).List(ctx, ours)
	if err != nil {
		return fmt.Errorf("list the DaemonSets of namespace %s: %w", s.Namespace, err)
	}
	for i := range deployments.Items {
		d := &deployments.Items[i]
		p := program{Name: d.Name, Ready: d.Status.ReadyReplicas, Wanted: ptr.Deref(d.Spec.Replicas, 1), Images: images(&d.Spec.Template), Outdated: d.Status.Replicas}
		if d.Status.ObservedGeneration >= d.Generation {
			p.Outdated -= d.Status.UpdatedReplicas
		}
		s.add(&p, "replicas of "+d.Name, d.Status.Replicas, "describe pods -l app.kubernetes.io/name="+d.Name, "deployment")
		if d.Name != "berth-console" { // All its replicas work.
			p.Leader = s.leader(ctx, call, d.Name)
		}
		s.Programs = append(s.Programs, p)
	}
	for i := range sets.Items {
		d := &sets.Items[i]
		p := program{Name: d.Name, Ready: d.Status.NumberReady, Wanted: d.Status.DesiredNumberScheduled, Images: images(&d.Spec.Template), Outdated: d.Status.DesiredNumberScheduled}
		if d.Status.ObservedGeneration >= d.Generation {
			p.Outdated -= d.Status.UpdatedNumberScheduled
		}
		pods := "pods of " + d.Name
		if d.Name == "berth-agent" {
			pods = "agents"
		}
		s.add(&p, pods, p.Wanted, "get pods -l app.kubernetes.io/name="+d.Labels["app.kubernetes.io/name"]+" -o wide", "daemonset")
		s.Programs = append(s.Programs, p)
	}
	for _, must := range [][2]string{{"Deployment", "berth-scheduler"}, {"Deployment", "berth-controller"}, {"DaemonSet", "berth-agent"}} {
		if !slices.ContainsFunc(s.Programs, func(p program) bool { return p.Name == must[1] }) {
			s.Problems.Add("", "there is no %s %s in namespace %s: install Berth with its chart, or name its namespace with --berth-namespace", must[0], must[1], s.Namespace)
		}
	}
	s.versions()
	return nil
}

// versions compares the tags of the programs' images. A digest tells no version.
func (s *status) versions() {
	tags := map[string]bool{}
	var each []string
	for _, p := range s.Programs {
		for _, image := range p.Images {
			if tag := tag(image); tag != "" {
				tags[tag] = true
				each = append(each, p.Name+" "+tag)
			}
		}
	}
	if len(tags) > 1 {
		s.Problems.Add(s.kubectl("get deployments,daemonsets -l app.kubernetes.io/part-of=berth -o wide"),
			"the programs shall be of one version and are of several: %s", strings.Join(each, ", "))
	}
}

func tag(image string) string {
	if strings.Contains(image, "@") {
		return ""
	}
	_, tag, _ := strings.Cut(path.Base(image), ":")
	return tag
}

// add adds the problems of a program with so many pods; ready shows those that are not.
func (s *status) add(p *program, pods string, all int32, ready, kind string) {
	if p.Ready < p.Wanted {
		s.Problems.Add(s.kubectl("%s", ready), "%d of %d %s are ready", p.Ready, p.Wanted, pods)
	}
	if p.Outdated > 0 {
		s.Problems.Add(s.kubectl("rollout status %s/%s", kind, p.Name), "%d of %d %s are of an earlier configuration or version", p.Outdated, all, pods)
	}
}

func (s *status) leader(ctx context.Context, call *command.Call, name string) string {
	logs := s.kubectl("logs -l app.kubernetes.io/name=%s", name)
	lease, err := call.Kube.CoordinationV1().Leases(s.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		s.Problems.Add(logs, "no replica of %s ever led", name)
		return ""
	case err != nil:
		s.Unknown = append(s.Unknown, fmt.Sprintf("which replica of %s leads: %s", name, failure.Explain(err)))
		return ""
	}
	// The holder's identity is POD_UUID.
	pod, _, _ := strings.Cut(ptr.Deref(lease.Spec.HolderIdentity, ""), "_")
	if pod == "" {
		s.Problems.Add(logs, "no replica of %s leads", name)
	} else if lease.Spec.RenewTime != nil && lease.Spec.LeaseDurationSeconds != nil {
		// The clocks of the API server's clients may differ by some seconds.
		if age := time.Since(lease.Spec.RenewTime.Time); age > time.Duration(*lease.Spec.LeaseDurationSeconds)*2*time.Second {
			s.Problems.Add(logs, "%s leads %s no more: it renewed its lease %s ago", pod, name, age.Round(time.Second))
		}
	}
	return pod
}

func images(template *v1.PodTemplateSpec) []string {
	var all []string
	for i := range template.Spec.Containers {
		all = append(all, template.Spec.Containers[i].Image)
	}
	return all
}

func (s *status) admission(ctx context.Context, call *command.Call) error {
	all, found, err := audit.AdmissionPolicies(ctx, call.Kube)
	if err != nil {
		return err
	}
	s.AdmissionPolicies = all
	for _, f := range found {
		s.Problems.Add(f.Command, "%s", f.Text)
	}
	return nil
}

func (s *status) pools(ctx context.Context, call *command.Call) error {
	all, err := call.Pools(ctx)
	if err != nil {
		return err
	}
	if s.Pools = len(all); s.Pools == 0 {
		s.Problems.Add("kubectl explain ippool.spec", "there is no IPPool, so that no pod gets a floating IP; manifests/examples/pool.yaml is one")
	}
	for _, pool := range all {
		if ready := meta.FindStatusCondition(pool.Status.Conditions, v1alpha1.PoolReady); ready != nil && ready.Status == metav1.ConditionFalse && !pool.Spec.Disabled {
			s.Problems.Add("kubectl describe ippool "+pool.Name, "pool %s cannot be used: %s", pool.Name, ready.Message)
		}
		if meta.IsStatusConditionTrue(pool.Status.Conditions, v1alpha1.PoolExhausted) && !pool.Spec.Disabled {
			s.Problems.Add("kubectl berth pool "+pool.Name, "pool %s has no free address", pool.Name)
		}
	}
	return nil
}

func (s *status) answer() *answer.Answer {
	table := answer.NewTable("Name", "Ready", "Leader", "Image")
	for _, p := range s.Programs {
		table.Add(p.Name, fmt.Sprintf("%d/%d", p.Ready, p.Wanted), p.Leader, strings.Join(p.Images, " "))
	}
	bound := len(slices.DeleteFunc(slices.Clone(s.AdmissionPolicies), func(p audit.AdmissionPolicy) bool { return !p.Bound }))
	if len(s.AdmissionPolicies) > 0 {
		table.Add("admission policies", fmt.Sprintf("%d/%d", bound, len(s.AdmissionPolicies)), "", "")
	}
	return &answer.Answer{Table: table, Kind: "InstallationStatus", Content: s, Text: func(out io.Writer, paint answer.Paint) {
		answer.PrintProblems(out, paint, s.Problems, s.Unknown, fmt.Sprintf("No problem; %d pools.", s.Pools))
	}}
}

const versionLong = `Prints the version of this plugin, and the images of Berth's programs as they are installed, with the
number of pods that an update has not reached. Each program says its own version with the metric
berth_build_info. --client asks no cluster.`

type versions struct {
	Client   string    `json:"client"`
	Programs []program `json:"programs,omitempty"`
}

func NewVersion() command.Command {
	var client bool
	return command.Command{
		Use: "version", Short: "Prints the versions of this plugin and of Berth's programs", Long: versionLong, Example: "  kubectl berth version", Programs: true,
		Flags: func(flags *pflag.FlagSet) {
			flags.BoolVar(&client, "client", false, "Print the version of this plugin alone.")
		},
		Offline: func() bool { return true }, // what it knows without the cluster it prints in any case
		Answer: func(ctx context.Context, call *command.Call) (*answer.Answer, error) {
			v := versions{Client: build.Version()}
			if client {
				return v.answer(), nil
			}
			if err := call.Connect(); err != nil {
				return v.answer(), err
			}
			s := &status{Namespace: call.System}
			err := s.programs(ctx, call)
			v.Programs = s.Programs
			return v.answer(), err
		},
	}
}

func (v versions) answer() *answer.Answer {
	return &answer.Answer{Kind: "Versions", Content: v, Text: func(out io.Writer, _ answer.Paint) {
		fmt.Fprintln(out, "kubectl-berth", v.Client)
		for _, p := range v.Programs {
			fmt.Fprint(out, p.Name, " ", strings.Join(p.Images, " "))
			if p.Outdated > 0 {
				fmt.Fprintf(out, " (%d pods are of an earlier configuration or version)", p.Outdated)
			}
			fmt.Fprintln(out)
		}
	}}
}
