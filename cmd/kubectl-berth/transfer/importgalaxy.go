// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/transfer/galaxyimport"
	"github.com/berth-dev/berth/cmd/kubectl-berth/transfer/plan"
	"github.com/berth-dev/berth/ipam/galaxy"
)

const importLong = `Turns Galaxy's pools, addresses and named pools into IPPools, FloatingIPs and
IPClaims, so that pods keep their addresses when they move from Galaxy to Berth.

It prints the plan first; with --dry-run it changes nothing. It never changes Galaxy's
objects, and never deletes Berth's objects: run it as often as you like.

An address that a live pod uses through Galaxy is recorded for that pod, which keeps
Galaxy's network until it is deleted. Pools are created disabled, so that Berth
allocates no new addresses while Galaxy may still do so.`

const importExamples = `  # What would be done?
  kubectl berth import-galaxy --dry-run

  # With a corrected copy of the pool configuration
  kubectl berth import-galaxy -f pools.json --dry-run

  # From a backup: kubectl get floatingips.galaxy.k8s.io,pools.galaxy.k8s.io -A -o yaml
  kubectl berth import-galaxy -f configmap.yaml -f backup.yaml --dry-run

  # The objects, to review and commit
  kubectl berth import-galaxy --dry-run -o yaml > imported.yaml

  # Do it
  kubectl berth import-galaxy`

type importing struct {
	files                     []string
	namespace, configMap, key string
	orphans, output           string
	workers                   int
	options                   galaxyimport.Options
	given                     *given
}

func NewImportGalaxy() command.Command {
	o := &importing{}
	return command.Command{
		Use: "import-galaxy", Short: "Takes over addresses from Galaxy", Long: importLong, Example: importExamples,
		Flags: o.addFlags, Writes: true, Found: needsDecision,
		CompleteFlags: map[string]command.Completion{
			"orphans": command.Words("skip", "reserve"),
			"output":  command.Words(formats...),
		},
		Prepare: func(call *command.Call) (err error) {
			if err := o.validate(call.DryRun); err != nil {
				return err
			}
			o.given, err = readFiles(call, o.files, o.key)
			return err
		},
		Run: o.run,
	}
}

func (o *importing) addFlags(flags *pflag.FlagSet) {
	flags.StringArrayVarP(&o.files, "filename", "f", nil, "File with Galaxy's pool configuration (JSON) or its objects (YAML or JSON: ConfigMap, FloatingIP, Pool, lists); - is stdin. State that no file has is read from the cluster. Can be repeated.")
	flags.StringVar(&o.namespace, "configmap-namespace", "kube-system", "Namespace of the ConfigMap with Galaxy's pools.")
	flags.StringVar(&o.configMap, "configmap-name", "floatingip-config", "Name of the ConfigMap with Galaxy's pools.")
	flags.StringVar(&o.key, "configmap-key", "floatingips", "Key in the ConfigMap. For pools inside Galaxy's process configuration: --configmap-name galaxy-ipam-etc --configmap-key galaxy-ipam.json.")
	flags.StringVar(&o.options.PoolPrefix, "pool-prefix", "galaxy-", "Prefix of the names of IPPools, before the pool's first address.")
	flags.StringToStringVar(&o.options.ClaimNamespaces, "claim-namespace", nil, "Namespace of the IPClaim that gets a Galaxy pool's addresses without a pod, as POOL=NAMESPACE (front=shop).")
	flags.StringVar(&o.orphans, "orphans", "skip", "What to do with addresses that Galaxy retains for an owner that cannot be found: skip, or reserve (import them as reserved).")
	flags.BoolVar(&o.options.EnablePools, "enable-pools", false, "Create pools enabled. Use it only if Galaxy no longer allocates addresses.")
	flags.BoolVar(&o.options.ExternalAssigner, "external-assigner", false, "Set it if Galaxy has a cloud provider: pools get spec.externalAssigner, and addresses of live pods are marked as assigned to their nodes.")
	flags.IntVar(&o.workers, "workers", 16, "Number of concurrent requests.")
	flags.StringVarP(&o.output, "output", "o", "", "Output format: yaml or json, which print the objects to create instead of the plan, with --dry-run.")
}

func (o *importing) validate(dryRun bool) error {
	var errs []error
	if o.options.ReserveOrphans = o.orphans == "reserve"; !o.options.ReserveOrphans && o.orphans != "skip" {
		errs = append(errs, fmt.Errorf("--orphans: %q is neither skip nor reserve", o.orphans))
	}
	if o.output != "" && !slices.Contains(formats, o.output) {
		errs = append(errs, fmt.Errorf("--output: %q is neither yaml nor json", o.output))
	}
	if o.output != "" && !dryRun {
		errs = append(errs, errors.New("--output prints the objects that would be created: add --dry-run"))
	}
	errs = append(errs, validateWorkers(o.workers))
	for pool, namespace := range o.options.ClaimNamespaces {
		if pool == "" || namespace == "" {
			errs = append(errs, fmt.Errorf("--claim-namespace: %q=%q: write POOL=NAMESPACE", pool, namespace))
		}
	}
	return errors.Join(errs...)
}

func (o *importing) run(ctx context.Context, call *command.Call) error {
	c, end, err := connect(call)
	if err != nil {
		return err
	}
	defer end()
	input, err := o.read(ctx, c)
	if err != nil {
		return err
	}
	made, err := galaxyimport.Make(input)
	if err != nil {
		return configError(err)
	}
	made.Notes = append(c.notes, made.Notes...)
	out := call.Out
	if o.output != "" {
		err = printObjects(out, made, o.output)
		out = call.ErrOut
		for i := range made.Items {
			if item := &made.Items[i]; err == nil && (item.Note != "" || item.Action == plan.Update) {
				fmt.Fprintf(out, "%s %s %s: %s\n", item.Action, item.Kind, item.FullName(), item.Note)
			}
		}
		printNotes(out, made)
	} else {
		err = printPlan(out, made)
	}
	if err != nil {
		return err
	}
	var mu sync.Mutex
	uids := map[types.NamespacedName]types.UID{}
	if err := c.apply(ctx, made, o.workers, ofGalaxy, func(ctx context.Context, item *plan.Item) error {
		if item.IP != nil {
			if owner := item.IP.Spec.Owner; owner != nil && owner.IsAwaited() && owner.IsClaim() {
				owner.UID = cmp.Or(uids[types.NamespacedName{Namespace: owner.Namespace, Name: owner.Name}], owner.UID)
			}
		}
		uid, err := c.write(ctx, item)
		if item.Claim != nil {
			mu.Lock()
			defer mu.Unlock()
			uids[plan.KeyOf(item.Claim)] = uid
		}
		return err
	}); err != nil {
		return err
	}
	printSummary(out, made, !call.DryRun, fromGalaxy(made))
	return outcome(made)
}

func (o *importing) read(ctx context.Context, c *cluster) (*galaxyimport.Input, error) {
	g := o.given
	if err := o.readGalaxy(ctx, c); err != nil {
		return nil, err
	}
	subnets, err := galaxy.ParseConfig(g.config)
	if err != nil {
		return nil, configError(err)
	}
	existing, err := c.readBerth(ctx, []string{"FloatingIP", "IPClaim", "IPPool"})
	if err != nil {
		return nil, err
	}
	input := &galaxyimport.Input{
		Subnets: subnets, IPs: g.ips, Pools: g.pools, Options: o.options, Kinds: c.kinds,
		ExistingPools: existing.Pools, ExistingClaims: existing.Claims, ExistingIPs: existing.IPs,
	}
	if input.Pods, err = c.readPods(ctx, galaxy.AnnotationArgs, galaxy.AnnotationPool, galaxy.AnnotationReleasePolicy); err != nil {
		return nil, err
	}
	for _, name := range galaxyimport.Kinds(input.IPs, input.Pods) {
		for _, kind := range c.kinds[name] {
			if err := c.readKind(ctx, kind, func(o *metav1.PartialObjectMetadata) {
				input.Workloads = append(input.Workloads, galaxyimport.Workload{
					GroupVersionKind: kind, Namespace: o.Namespace, Name: o.Name, UID: o.UID, Controller: metav1.GetControllerOf(o),
				})
			}); err != nil {
				return nil, err
			}
		}
	}
	return input, nil
}

func fromGalaxy(made *galaxyimport.Plan) string {
	live := 0
	for i := range made.Items {
		if ip := made.Items[i].IP; ip != nil && ip.Spec.Pod != nil {
			live++
		}
	}
	if live == 0 {
		return ""
	}
	return fmt.Sprintf("%d addresses belong to live pods, which stay on Galaxy's network until they are deleted.\n", live)
}

func configError(err error) error {
	return fmt.Errorf("the pool configuration of Galaxy cannot be imported as it is:\n%w\n"+
		"correct a copy and pass it with -f; do not change the ConfigMap, because Galaxy forgets addresses that are no longer in its pools", err)
}

// galaxyNamespace is the only namespace in which Galaxy reads Pools.
const galaxyNamespace = "kube-system"

type given struct {
	config    []byte // nil: not given
	hasIPs    bool
	ips       []galaxy.FloatingIP
	hasPools  bool
	pools     []galaxy.Pool
	configKey string
}

func readFiles(call *command.Call, names []string, configKey string) (*given, error) {
	g := &given{configKey: configKey}
	for _, name := range names {
		text, err := call.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read Galaxy's state: %w", err)
		}
		if err := g.addFile(text); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return g, nil
}

func (g *given) addFile(text []byte) error {
	return eachDocument(text, func(document []byte) error {
		if document[0] == '[' {
			return g.addConfig(document)
		}
		return g.addObject(document)
	})
}

func (g *given) addConfig(text []byte) error {
	if g.config != nil {
		return errors.New("a second pool configuration: give only one")
	}
	g.config = text
	return nil
}

func (g *given) addObject(document []byte) error {
	var object struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Items             []json.RawMessage `json:"items"`
		Data              map[string]string `json:"data"`
		SchedulePlugin    json.RawMessage   `json:"schedule_plugin"`
	}
	if err := json.Unmarshal(document, &object); err != nil {
		return fmt.Errorf("neither a Kubernetes object nor Galaxy's pool configuration: %w", err)
	}
	galaxyVersion := galaxy.GroupName + "/" + galaxy.Version
	switch kind := object.Kind; {
	case kind == "" && object.SchedulePlugin != nil:
		return g.addConfig(document)
	case kind == "ConfigMap" && object.APIVersion == "v1":
		config, err := configOf(object.Namespace, object.Name, object.Data, g.configKey)
		if err != nil {
			return err
		}
		return g.addConfig(config)
	case kind == "FloatingIP" && object.APIVersion == galaxyVersion:
		var ip galaxy.FloatingIP
		if err := json.Unmarshal(document, &ip); err != nil {
			return fmt.Errorf("parse a FloatingIP of Galaxy's: %w", err)
		}
		g.ips, g.hasIPs = append(g.ips, ip), true
		return nil
	case kind == "Pool" && object.APIVersion == galaxyVersion:
		var pool galaxy.Pool
		if err := json.Unmarshal(document, &pool); err != nil {
			return fmt.Errorf("parse a Pool of Galaxy's: %w", err)
		}
		if g.hasPools = true; pool.Namespace == galaxyNamespace || pool.Namespace == "" {
			g.pools = append(g.pools, pool)
		}
		return nil
	case strings.HasSuffix(kind, "List"):
		g.hasIPs = g.hasIPs || kind == "FloatingIPList"
		g.hasPools = g.hasPools || kind == "PoolList"
		for i, item := range object.Items {
			if err := g.addObject(item); err != nil {
				return fmt.Errorf("items[%d]: %w", i, err)
			}
		}
		return nil
	}
	return fmt.Errorf("%s %s is not Galaxy's: want a ConfigMap, %s FloatingIP or Pool, or a list of them", object.APIVersion, object.Kind, galaxyVersion)
}

func configOf(namespace, name string, data map[string]string, key string) ([]byte, error) {
	text, ok := data[key]
	if !ok {
		return nil, fmt.Errorf("ConfigMap %s/%s has no key %q: name it with --configmap-key", namespace, name, key)
	}
	return []byte(text), nil
}

func (o *importing) readGalaxy(ctx context.Context, c *cluster) error {
	g := o.given
	if g.config == nil {
		c.progress.Say("Reading ConfigMap %s/%s", o.namespace, o.configMap)
		object, err := c.Kube.CoreV1().ConfigMaps(o.namespace).Get(ctx, o.configMap, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("there is no ConfigMap %s/%s with Galaxy's pools: name it with --configmap-namespace and --configmap-name, or give the pools with -f", o.namespace, o.configMap)
		}
		if err != nil {
			return fmt.Errorf("get Galaxy's pools: %w", err)
		}
		if g.config, err = configOf(o.namespace, o.configMap, object.Data, o.key); err != nil {
			return err
		}
	}
	if !g.hasIPs {
		if served, err := list(ctx, c, "floatingips", "", &g.ips); err != nil {
			return err
		} else if !served {
			c.notes = append([]string{fmt.Sprintf("the cluster has no floatingips.%s: only the addresses in the annotations of pods are imported", galaxy.GroupName)}, c.notes...)
		}
	}
	if !g.hasPools {
		if _, err := list(ctx, c, "pools", galaxyNamespace, &g.pools); err != nil {
			return err
		}
	}
	return nil
}

// list reads all of Galaxy's objects of a resource into items, if the API server serves it.
func list[T any](ctx context.Context, c *cluster, name, namespace string, items *[]T) (served bool, err error) {
	resource := schema.GroupVersionResource{Group: galaxy.GroupName, Version: galaxy.Version, Resource: name}
	what := resource.GroupResource().String()
	if !c.serves[what] {
		return false, nil
	}
	return true, each(ctx, c, what, c.Dynamic.Resource(resource).Namespace(namespace).List, func(fields *unstructured.Unstructured) error {
		var item T
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields.Object, &item); err != nil {
			return fmt.Errorf("%s %s: %w", fields.GetKind(), fields.GetName(), err)
		}
		*items = append(*items, item)
		return nil
	})
}
