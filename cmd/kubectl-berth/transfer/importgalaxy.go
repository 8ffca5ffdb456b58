// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	chosen "github.com/berth-dev/berth/cmd/kubectl-berth/cluster"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/transfer/galaxyimport"
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

// importOptions are the flags of import-galaxy.
type importOptions struct {
	files              []string
	configMapNamespace string
	configMapName      string
	configMapKey       string
	poolPrefix         string
	claimNamespaces    map[string]string
	orphans            string
	enablePools        bool
	externalAssigner   bool
	workers            int
	output             string
	given              *given
}

// NewImportGalaxy returns the command import-galaxy.
func NewImportGalaxy(of *chosen.Cluster, streams genericiooptions.IOStreams) *cobra.Command {
	o := &importOptions{
		configMapNamespace: "kube-system", configMapName: "floatingip-config", configMapKey: "floatingips",
		poolPrefix: "galaxy-", orphans: "skip", workers: 16,
	}
	return command.Command{
		Use: "import-galaxy", Short: "Takes over addresses from Galaxy", Long: importLong, Example: importExamples, Args: cobra.NoArgs,
		Flags: o.addFlags, Writes: true, Found: needsDecision,
		CompleteFlags: map[string]cobra.CompletionFunc{
			"orphans": command.Words("skip", "reserve"),
			"output":  command.Words(formats...),
		},
		Prepare: func(call *command.Call) (err error) {
			if err := o.validate(call.DryRun); err != nil {
				return err
			}
			o.given, err = readFiles(o.files, call.In, o.configMapKey)
			return err
		},
		Run: o.run,
	}.New(of, streams)
}

func (o *importOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringArrayVarP(&o.files, "filename", "f", nil, "File with Galaxy's pool configuration (JSON) or its objects (YAML or JSON: ConfigMap, FloatingIP, Pool, lists); - is stdin. State that no file has is read from the cluster. Can be repeated.")
	flags.StringVar(&o.configMapNamespace, "configmap-namespace", o.configMapNamespace, "Namespace of the ConfigMap with Galaxy's pools.")
	flags.StringVar(&o.configMapName, "configmap-name", o.configMapName, "Name of the ConfigMap with Galaxy's pools.")
	flags.StringVar(&o.configMapKey, "configmap-key", o.configMapKey, "Key in the ConfigMap. For pools inside Galaxy's process configuration: --configmap-name galaxy-ipam-etc --configmap-key galaxy-ipam.json.")
	flags.StringVar(&o.poolPrefix, "pool-prefix", o.poolPrefix, "Prefix of the names of IPPools, before the pool's first address.")
	flags.StringToStringVar(&o.claimNamespaces, "claim-namespace", nil, "Namespace of the IPClaim that gets a Galaxy pool's addresses without a pod, as POOL=NAMESPACE (front=shop).")
	flags.StringVar(&o.orphans, "orphans", o.orphans, "What to do with addresses that Galaxy retains for an owner that cannot be found: skip, or reserve (import them as reserved).")
	flags.BoolVar(&o.enablePools, "enable-pools", o.enablePools, "Create pools enabled. Use it only if Galaxy no longer allocates addresses.")
	flags.BoolVar(&o.externalAssigner, "external-assigner", o.externalAssigner, "Set it if Galaxy has a cloud provider: pools get spec.externalAssigner, and addresses of live pods are marked as assigned to their nodes.")
	flags.IntVar(&o.workers, "workers", o.workers, "Number of concurrent requests.")
	flags.StringVarP(&o.output, "output", "o", "", "Output format: yaml or json, which print the objects to create instead of the plan, with --dry-run.")
}

func (o *importOptions) validate(dryRun bool) error {
	var errs []error
	switch o.orphans {
	case "skip", "reserve":
	default:
		errs = append(errs, fmt.Errorf("--orphans: %q is neither skip nor reserve", o.orphans))
	}
	switch o.output {
	case "", "yaml", "json":
	default:
		errs = append(errs, fmt.Errorf("--output: %q is neither yaml nor json", o.output))
	}
	if o.output != "" && !dryRun {
		errs = append(errs, errors.New("--output prints the objects that would be created: add --dry-run"))
	}
	errs = append(errs, validateWorkers(o.workers))
	for pool, namespace := range o.claimNamespaces {
		if pool == "" || namespace == "" {
			errs = append(errs, fmt.Errorf("--claim-namespace: %q=%q: write POOL=NAMESPACE", pool, namespace))
		}
	}
	return errors.Join(errs...)
}

func validateWorkers(n int) error {
	if n < 1 || n > 256 {
		return fmt.Errorf("--workers: %d is not between 1 and 256", n)
	}
	return nil
}

// needsDecision is when the commands of a plan have found something.
const needsDecision = "you must decide about some items (skip and conflict in the plan)"

// undecided says that all went well, except items that the user must decide about.
func undecided(items int) error {
	return answer.FindingsError(fmt.Sprintf("Items that need a decision: %d (skip and conflict in the plan).", items))
}

func (o *importOptions) run(ctx context.Context, call *command.Call) error {
	api, err := connect(call)
	if err != nil {
		return err
	}
	progress := &progress{out: call.ErrOut}
	input, notes, err := o.read(ctx, api, o.given, progress)
	if err != nil {
		return err
	}
	plan, err := galaxyimport.Make(input)
	if err != nil {
		return configError(err)
	}
	plan.Notes = append(notes, plan.Notes...)
	if o.output != "" {
		if err := printObjects(call.Out, plan, o.output); err != nil {
			return err
		}
		printRemarks(call.ErrOut, plan)
	} else if err := printPlan(call.Out, plan); err != nil {
		return err
	}
	if err := o.write(ctx, &applier{api: api.berth, workers: o.workers, progress: progress, dryRun: call.DryRun}, plan); err != nil {
		return err
	}
	out := call.Out
	if o.output != "" {
		out = call.ErrOut
	}
	printSummary(out, plan, !call.DryRun, fromGalaxy(plan))
	if n := plan.Undecided(); n > 0 {
		return undecided(n)
	}
	return nil
}

// read collects the input of the plan.
func (o *importOptions) read(ctx context.Context, api *cluster, given *given, progress *progress) (*galaxyimport.Input, []string, error) {
	notes, err := o.readGalaxy(ctx, api, given, progress)
	if err != nil {
		return nil, nil, err
	}
	subnets, err := galaxy.ParseConfig(given.config)
	if err != nil {
		return nil, nil, configError(err)
	}
	input := &galaxyimport.Input{
		Subnets: subnets, IPs: given.ips, Pools: given.pools,
		Options: galaxyimport.Options{
			PoolPrefix:       o.poolPrefix,
			EnablePools:      o.enablePools,
			ExternalAssigner: o.externalAssigner,
			ReserveOrphans:   o.orphans == "reserve",
			ClaimNamespaces:  o.claimNamespaces,
		},
	}
	existing, err := api.readBerth(ctx, progress, []string{"FloatingIP", "IPClaim", "IPPool"})
	if err != nil {
		return nil, nil, err
	}
	input.ExistingPools, input.ExistingClaims, input.ExistingIPs = existing.Pools, existing.Claims, existing.IPs
	if err := api.readWorkloads(ctx, input, progress); err != nil {
		return nil, nil, err
	}
	return input, append(notes, api.notes...), nil
}

// write applies a plan: claims first, because addresses carry their UIDs; then addresses;
// pools last, so that nothing is allocated from them before all addresses in use are
// recorded.
func (o *importOptions) write(ctx context.Context, applier *applier, made *galaxyimport.Plan) error {
	claims, ips, pools, _ := toWrite(made)
	uids := map[types.NamespacedName]types.UID{}
	var mu sync.Mutex
	createClaim := func(ctx context.Context, item *galaxyimport.Item) error {
		uid, err := applier.write(ctx, item, nil)
		mu.Lock()
		defer mu.Unlock()
		uids[types.NamespacedName{Namespace: item.Namespace, Name: item.Name}] = uid
		return err
	}
	createIP := func(ctx context.Context, item *galaxyimport.Item) error {
		if owner := item.IP.Spec.Owner; owner != nil && owner.IsAwaited() && owner.IsClaim() {
			if uid, ok := uids[types.NamespacedName{Namespace: owner.Namespace, Name: owner.Name}]; ok {
				owner.UID = uid
			}
		}
		_, err := applier.write(ctx, item, nil)
		return err
	}
	return applier.apply(ctx, step{"claims", claims, createClaim}, step{"addresses", ips, createIP}, step{"pools", pools, nil})
}

// fromGalaxy returns the summary's remark about addresses of live pods.
func fromGalaxy(plan *galaxyimport.Plan) string {
	live := 0
	for i := range plan.Items {
		if ip := plan.Items[i].IP; ip != nil && ip.Spec.Pod != nil {
			live++
		}
	}
	if live == 0 {
		return ""
	}
	return fmt.Sprintf("%d addresses belong to live pods, which stay on Galaxy's network until they are deleted.\n", live)
}

// configError adds advice to the error about an invalid configuration.
func configError(err error) error {
	return fmt.Errorf("the pool configuration of Galaxy cannot be imported as it is:\n%w\n"+
		"correct a copy and pass it with -f; do not change the ConfigMap, because Galaxy forgets addresses that are no longer in its pools", err)
}
