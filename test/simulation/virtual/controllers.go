// SPDX-License-Identifier: Apache-2.0

package virtual

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/clusterroleaggregation"
	"k8s.io/kubernetes/pkg/controller/daemon"
	"k8s.io/kubernetes/pkg/controller/deployment"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/job"
	"k8s.io/kubernetes/pkg/controller/nodelifecycle"
	"k8s.io/kubernetes/pkg/controller/podgc"
	"k8s.io/kubernetes/pkg/controller/replicaset"
	"k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/controller/statefulset"
	"k8s.io/kubernetes/pkg/controller/tainteviction"
)

// nodeGrace is how long a node may be silent, as in package lab.
const nodeGrace = 10 * time.Second

// startControllers runs Kubernetes' controllers of workloads and nodes, as kube-controller-manager
// does, until ctx ends; with nodesLeft none that judges nodes. wait waits for their end.
//
//nolint:funlen // It is one list of controllers.
func startControllers(ctx context.Context, api *rest.Config, nodesLeft bool) (wait func(), err error) {
	kube, err := kubernetes.NewForConfig(protobuf(api))
	if err != nil {
		return nil, err
	}
	headers, err := metadata.NewForConfig(api)
	if err != nil {
		return nil, err
	}
	factory := informers.NewSharedInformerFactory(kube, 0)
	all := informerfactory.NewInformerFactory(factory, metadatainformer.NewSharedInformerFactory(headers, 0))
	core, apps, batch := factory.Core().V1(), factory.Apps().V1(), factory.Batch().V1()
	deployments, err := deployment.NewDeploymentController(ctx, apps.Deployments(), apps.ReplicaSets(), core.Pods(), kube)
	if err != nil {
		return nil, err
	}
	daemons, err := daemon.NewDaemonSetsController(ctx, apps.DaemonSets(), apps.ControllerRevisions(), core.Pods(), core.Nodes(), kube, flowcontrol.NewBackOff(time.Second, 15*time.Minute))
	if err != nil {
		return nil, err
	}
	jobs, err := job.NewController(ctx, kube, core.Pods(), batch.Jobs(), nil, nil)
	if err != nil {
		return nil, err
	}
	taints, err := tainteviction.New(ctx, kube, core.Pods(), core.Nodes(), "taint-eviction-controller")
	if err != nil {
		return nil, err
	}
	accounts, err := serviceaccount.NewServiceAccountsController(klog.FromContext(ctx), core.ServiceAccounts(), core.Namespaces(), kube, serviceaccount.DefaultServiceAccountsControllerOptions())
	if err != nil {
		return nil, err
	}
	sets := replicaset.NewReplicaSetController(ctx, apps.ReplicaSets(), core.Pods(), kube, replicaset.BurstReplicas)
	statefulSets := statefulset.NewStatefulSetController(ctx, core.Pods(), apps.StatefulSets(), core.PersistentVolumeClaims(), apps.ControllerRevisions(), kube)
	roles := clusterroleaggregation.NewClusterRoleAggregation(factory.Rbac().V1().ClusterRoles(), kube.RbacV1())
	resources := discovery.NewDiscoveryClientForConfigOrDie(api)
	started := make(chan struct{})
	garbage, err := garbagecollector.NewGarbageCollector(ctx, kube, headers, restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(resources)), map[schema.GroupResource]struct{}{{Resource: "events"}: {}, {Group: "events.k8s.io", Resource: "events"}: {}}, all, started)
	if err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	const workers = 5
	parts := []func(ctx context.Context){
		func(ctx context.Context) { deployments.Run(ctx, workers) }, func(ctx context.Context) { sets.Run(ctx, workers) }, func(ctx context.Context) { statefulSets.Run(ctx, workers) },
		func(ctx context.Context) { daemons.Run(ctx, workers) }, func(ctx context.Context) { jobs.Run(ctx, workers) }, func(ctx context.Context) { accounts.Run(ctx, 1) },
		func(ctx context.Context) { roles.Run(ctx, 1) }, func(ctx context.Context) { garbage.Run(ctx, 20, 30*time.Second) }, func(ctx context.Context) { garbage.Sync(ctx, resources, 5*time.Second) },
		taints.Run,
	}
	if !nodesLeft {
		nodes, err := nodelifecycle.NewNodeLifecycleController(ctx, factory.Coordination().V1().Leases(), core.Pods(), core.Nodes(), apps.DaemonSets(), kube, time.Second, time.Minute, nodeGrace, 0.1, 0.01, 50, 0.55)
		if err != nil {
			return nil, err
		}
		parts = append(parts, nodes.Run, podgc.NewPodGC(ctx, kube, core.Pods(), core.Nodes(), 12500).Run)
	}
	all.Start(ctx.Done())
	close(started)
	go func() {
		defer close(ended)
		concurrent(ctx, parts...)
		factory.Shutdown()
	}()
	return func() { <-ended }, nil
}
