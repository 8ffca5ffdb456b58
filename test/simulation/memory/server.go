// SPDX-License-Identifier: Apache-2.0

// Package memory is kube-apiserver in this process, for bubbles of testing/synctest: its
// registries, handlers, validation, admission and authorization, with a map in the place of etcd
// and function calls in the place of a network. CustomResourceDefinitions are served as it does.
//
// It knows the groups that Berth, its workloads and their controllers use. It does not have
// Services' allocators, policies and webhooks of admission, priority and fairness, or OpenAPI.
package memory

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	restful "github.com/emicklei/go-restful/v3"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apiextensionsinformers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions"
	"k8s.io/apiextensions-apiserver/pkg/controller/establish"
	"k8s.io/apiextensions-apiserver/pkg/controller/status"
	"k8s.io/apiextensions-apiserver/pkg/registry/customresourcedefinition"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/controlplane"
	kubeletclient "k8s.io/kubernetes/pkg/kubelet/client"
	appsrest "k8s.io/kubernetes/pkg/registry/apps/rest"
	authorizationrest "k8s.io/kubernetes/pkg/registry/authorization/rest"
	batchrest "k8s.io/kubernetes/pkg/registry/batch/rest"
	certificatesrest "k8s.io/kubernetes/pkg/registry/certificates/rest"
	coordinationrest "k8s.io/kubernetes/pkg/registry/coordination/rest"
	nodestore "k8s.io/kubernetes/pkg/registry/core/node/storage"
	pvstore "k8s.io/kubernetes/pkg/registry/core/persistentvolume/storage"
	pvcstore "k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim/storage"
	podstore "k8s.io/kubernetes/pkg/registry/core/pod/storage"
	controllerstore "k8s.io/kubernetes/pkg/registry/core/replicationcontroller/storage"
	corerest "k8s.io/kubernetes/pkg/registry/core/rest"
	"k8s.io/kubernetes/pkg/registry/core/service"
	accountstore "k8s.io/kubernetes/pkg/registry/core/serviceaccount/storage"
	eventsrest "k8s.io/kubernetes/pkg/registry/events/rest"
	policyrest "k8s.io/kubernetes/pkg/registry/policy/rest"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrole"
	clusterrolestore "k8s.io/kubernetes/pkg/registry/rbac/clusterrole/storage"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding"
	clusterrolebindingstore "k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding/storage"
	rbacrest "k8s.io/kubernetes/pkg/registry/rbac/rest"
	"k8s.io/kubernetes/pkg/registry/rbac/role"
	rolestore "k8s.io/kubernetes/pkg/registry/rbac/role/storage"
	"k8s.io/kubernetes/pkg/registry/rbac/rolebinding"
	rolebindingstore "k8s.io/kubernetes/pkg/registry/rbac/rolebinding/storage"
	resourcerest "k8s.io/kubernetes/pkg/registry/resource/rest"
	schedulingrest "k8s.io/kubernetes/pkg/registry/scheduling/rest"
	storagerest "k8s.io/kubernetes/pkg/registry/storage/rest"
	"k8s.io/kubernetes/plugin/pkg/admission/defaulttolerationseconds"
	"k8s.io/kubernetes/plugin/pkg/admission/priority"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
)

// Server is the API server. Safe for concurrent use.
type Server struct {
	data *data
	http.Handler
	agents      atomic.Pointer[http.Handler]
	groups      []metav1.APIGroup // but those of definitions
	definitions cache.SharedIndexInformer
	stop        []func()
}

// provider makes the storage of an API group.
type provider interface {
	NewRESTStorage(serverstorage.APIResourceConfigSource, generic.RESTOptionsGetter) (genericapiserver.APIGroupInfo, error)
}

// Start starts a server with the objects of a Backup; nil: none. It works until ctx ends and Wait
// has returned.
func Start(ctx context.Context, backup *Backup) (*Server, error) {
	s := &Server{data: newData()}
	if backup != nil {
		s.data = backup.data.copyOf()
	}
	// The handlers' own clients.
	config := s.Config()
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	authorizes, err := s.authorizer()
	if err != nil {
		return nil, err
	}
	factory := informers.NewSharedInformerFactory(kube, 0)
	priorities := priority.NewPlugin()
	priorities.SetExternalKubeClientSet(kube)
	priorities.SetExternalKubeInformerFactory(factory)
	tolerations := defaulttolerationseconds.NewDefaultTolerationSeconds()
	tolerations.InspectFeatureGates(utilfeature.DefaultFeatureGate)
	in := installer{Server: s, container: restful.NewContainer(), admit: admission.NewChainHandler(priorities, tolerations), authorizer: authorizes}
	if err := in.install(kube); err != nil {
		return nil, err
	}
	custom, follow, err := in.custom(ctx, config)
	if err != nil {
		return nil, err
	}
	mux := http.HandlerFunc(func(writer http.ResponseWriter, asked *http.Request) {
		if info, _ := request.RequestInfoFrom(asked.Context()); s.discover(writer, asked, info) {
			return
		} else if !info.IsResourceRequest || in.serves(info) {
			in.container.ServeHTTP(writer, asked)
		} else {
			custom.ServeHTTP(writer, asked)
		}
	})
	s.Handler = s.identify(filters.WithRequestInfo(filters.WithAuthorization(mux, authorizes, legacyscheme.Codecs), infos))
	s.Handler = filters.WithAuditInit(filters.WithWarningRecorder(s.Handler))
	follow()
	factory.Start(ctx.Done())
	s.stop = append(s.stop, factory.Shutdown)
	cache.WaitForCacheSync(ctx.Done(), s.definitions.HasSynced, factory.Scheduling().V1().PriorityClasses().Informer().HasSynced)
	return s, nil
}

// Agents has a handler answer what is asked of pods.
func (s *Server) Agents(handler http.Handler) { s.agents.Store(&handler) }

// RoundTrip carries a request to a pod.
func (s *Server) RoundTrip(asked *http.Request) (*http.Response, error) {
	return Transport(*s.agents.Load()).RoundTrip(asked)
}

// unsigned makes tokens that nobody checks.
type unsigned struct{}

func (unsigned) GenerateToken(_ context.Context, claims *jwt.Claims, _ any) (string, error) {
	payload, err := json.Marshal(claims)
	return "e30." + base64.RawURLEncoding.EncodeToString(payload) + ".", err
}

// Wait waits until all is over after the end of Start's ctx.
func (s *Server) Wait() {
	for _, stop := range slices.Backward(s.stop) {
		stop()
	}
}

// Config is an administrator's. Clients are not limited.
func (s *Server) Config() *clientrest.Config {
	return &clientrest.Config{Host: "http://memory", QPS: -1, Transport: Transport(http.HandlerFunc(func(writer http.ResponseWriter, asked *http.Request) {
		s.ServeHTTP(writer, asked)
	}))}
}

// Backup is all objects at one moment.
type Backup struct{ data *data }

// Backup saves all objects.
func (s *Server) Backup() *Backup { return &Backup{s.data.copyOf()} }

var infos = &request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}

// identify says who asks: an administrator, who may also ask as others.
func (s *Server) identify(next http.Handler) http.Handler {
	return http.HandlerFunc(func(writer http.ResponseWriter, asked *http.Request) {
		who := &user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}}
		if as := asked.Header.Get("Impersonate-User"); as != "" {
			who = &user.DefaultInfo{Name: as, Groups: append(asked.Header["Impersonate-Group"], user.AllAuthenticated)}
		}
		next.ServeHTTP(writer, asked.WithContext(request.WithReceivedTimestamp(request.WithUser(asked.Context(), who), time.Now())))
	})
}

// codec copies objects of dry runs.
var codec = legacyscheme.Codecs.LegacyCodec(legacyscheme.Scheme.PrioritizedVersionsAllGroups()...)

// GetRESTOptions keeps a resource in memory.
func (s *Server) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	prefix := resource.String()
	if resource.Resource == "events" {
		prefix = "events" // of two groups
	}
	return generic.RESTOptions{
		StorageConfig: (&storagebackend.Config{Prefix: "/", Codec: codec}).ForResource(resource), EnableGarbageCollection: true, DeleteCollectionWorkers: 1, ResourcePrefix: prefix,
		Decorator: func(_ *storagebackend.ConfigForResource, _ string, _ func(runtime.Object) (string, error), newFunc, _ func() runtime.Object, _ storage.AttrFunc, _ storage.IndexerFuncs, _ *cache.Indexers) (storage.Interface, factory.DestroyFunc, error) {
			return &store{data: s.data, table: s.data.table(prefix), newFunc: newFunc}, func() {}, nil
		},
	}, nil
}

// authorizer is RBAC's.
func (s *Server) authorizer() (authorizer.Authorizer, error) {
	roles, err := rolestore.NewREST(s)
	if err != nil {
		return nil, err
	}
	bindings, err := rolebindingstore.NewREST(s)
	if err != nil {
		return nil, err
	}
	clusterRoles, err := clusterrolestore.NewREST(s)
	if err != nil {
		return nil, err
	}
	clusterBindings, err := clusterrolebindingstore.NewREST(s)
	if err != nil {
		return nil, err
	}
	byRBAC := rbac.New(
		role.AuthorizerAdapter{Registry: role.NewRegistry(roles)}, rolebinding.AuthorizerAdapter{Registry: rolebinding.NewRegistry(bindings)},
		clusterrole.AuthorizerAdapter{Registry: clusterrole.NewRegistry(clusterRoles)}, clusterrolebinding.AuthorizerAdapter{Registry: clusterrolebinding.NewRegistry(clusterBindings)},
	)
	return authorizer.AuthorizerFunc(func(ctx context.Context, of authorizer.Attributes) (authorizer.Decision, string, error) {
		if slices.Contains(of.GetUser().GetGroups(), user.SystemPrivilegedGroup) {
			return authorizer.DecisionAllow, "", nil
		}
		return byRBAC.Authorize(ctx, of)
	}), nil
}

// installer installs the handlers of API groups.
type installer struct {
	*Server
	container  *restful.Container
	admit      admission.Interface
	authorizer authorizer.Authorizer
	versions   []schema.GroupVersion
}

func (in *installer) serves(info *request.RequestInfo) bool {
	return slices.Contains(in.versions, schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion})
}

func (in *installer) install(kube kubernetes.Interface) error {
	enabled := controlplane.DefaultAPIResourceConfigSource()
	for _, p := range []provider{
		&corerest.GenericConfig{EventTTL: time.Hour}, appsrest.StorageProvider{}, batchrest.RESTStorageProvider{}, policyrest.RESTStorageProvider{}, coordinationrest.RESTStorageProvider{},
		authorizationrest.RESTStorageProvider{Authorizer: in.authorizer}, eventsrest.RESTStorageProvider{TTL: time.Hour}, storagerest.RESTStorageProvider{}, schedulingrest.RESTStorageProvider{}, rbacrest.RESTStorageProvider{Authorizer: in.authorizer},
		resourcerest.RESTStorageProvider{NamespaceClient: kube.CoreV1().Namespaces(), Authorizer: in.authorizer},
		certificatesrest.RESTStorageProvider{Authorizer: in.authorizer},
	} {
		group, err := p.NewRESTStorage(enabled, in)
		if err != nil {
			return err
		}
		root := "/apis"
		if group.PrioritizedVersions[0].Group == "" {
			if err := in.core(group.VersionedResourcesStorageMap["v1"], kube); err != nil {
				return err
			}
			root = "/api"
		}
		if err := in.group(root, group); err != nil {
			return err
		}
	}
	return nil
}

// core adds the resources of the core group beyond the generic ones.
func (in *installer) core(resources map[string]rest.Storage, kube kubernetes.Interface) error {
	nodes, err := nodestore.NewStorage(in, kubeletclient.KubeletClientConfig{}, nil)
	if err != nil {
		return err
	}
	pods, err := podstore.NewStorage(in, nodes.KubeletConnectionInfo, in.Server, kube.PolicyV1(), in.authorizer)
	if err != nil {
		return err
	}
	volumes, volumesStatus, err := pvstore.NewREST(in)
	if err != nil {
		return err
	}
	claims, claimsStatus, err := pvcstore.NewREST(in)
	if err != nil {
		return err
	}
	controllers, err := controllerstore.NewStorage(in)
	if err != nil {
		return err
	}
	// Nobody makes Services, of which kube-scheduler wants a list.
	services := &genericregistry.Store{
		NewFunc: func() runtime.Object { return &core.Service{} }, NewListFunc: func() runtime.Object { return &core.ServiceList{} },
		DefaultQualifiedResource: core.Resource("services"), SingularQualifiedResource: core.Resource("service"),
		CreateStrategy: service.Strategy, UpdateStrategy: service.Strategy, DeleteStrategy: service.Strategy, TableConvertor: rest.NewDefaultTableConvertor(core.Resource("services")),
	}
	if err := services.CompleteWithOptions(&generic.StoreOptions{RESTOptions: in}); err != nil {
		return err
	}
	accounts, err := accountstore.NewREST(in, unsigned{}, nil, time.Hour, pods.Pod, resources["secrets"].(rest.Getter), nodes.Node, false, 0)
	if err != nil {
		return err
	}
	maps.Copy(resources, map[string]rest.Storage{
		"serviceaccounts": accounts, "serviceaccounts/token": accounts.Token,
		"nodes": nodes.Node, "nodes/status": nodes.Status,
		"pods": pods.Pod, "pods/status": pods.Status, "pods/binding": pods.Binding, "pods/eviction": pods.Eviction, "pods/proxy": pods.Proxy,
		"persistentvolumes": volumes, "persistentvolumes/status": volumesStatus, "persistentvolumeclaims": claims, "persistentvolumeclaims/status": claimsStatus,
		"replicationcontrollers": controllers.Controller, "replicationcontrollers/status": controllers.Status, "services": services,
	})
	return nil
}

// group installs a group, as genericapiserver does.
func (in *installer) group(root string, info genericapiserver.APIGroupInfo) error {
	v1 := schema.GroupVersion{Version: "v1"}
	var group metav1.APIGroup
	for _, version := range info.PrioritizedVersions {
		resources := info.VersionedResourcesStorageMap[version.Version]
		if len(resources) == 0 {
			continue
		}
		//nolint:misspell // Kubernetes has this word.
		of := endpoints.APIGroupVersion{
			Storage: resources, Root: root, GroupVersion: version, OptionsExternalVersion: &v1, MetaGroupVersion: info.MetaGroupVersion,
			Serializer: info.NegotiatedSerializer, ParameterCodec: info.ParameterCodec, Typer: info.Scheme, Creater: info.Scheme, Convertor: info.Scheme, ConvertabilityChecker: info.Scheme,
			Defaulter: info.Scheme, Namer: runtime.Namer(meta.NewAccessor()), UnsafeConvertor: runtime.UnsafeObjectConvertor(info.Scheme), TypeConverter: managedfields.NewDeducedTypeConverter(),
			EquivalentResourceRegistry: runtime.NewEquivalentResourceRegistry(), Authorizer: in.authorizer, Admit: in.admit, MinRequestTimeout: 30 * time.Minute, MaxRequestBodyBytes: 3 << 20,
		}
		if _, _, err := of.InstallREST(in.container); err != nil {
			return fmt.Errorf("install %s: %w", version, err)
		}
		in.versions = append(in.versions, version)
		group.Name = version.Group
		group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{GroupVersion: version.String(), Version: version.Version})
	}
	if root == "/apis" {
		group.PreferredVersion = group.Versions[0]
		in.groups = append(in.groups, group)
	}
	return nil
}

// custom serves definitions and their objects as apiextensions-apiserver does, which follows the
// definitions from the call of follow until ctx ends.
func (in *installer) custom(ctx context.Context, config *clientrest.Config) (handler http.Handler, follow func(), err error) {
	group := genericapiserver.NewDefaultAPIGroupInfo(apiextensionsv1.GroupName, apiserver.Scheme, metav1.ParameterCodec, apiserver.Codecs)
	definitions, err := customresourcedefinition.NewREST(apiserver.Scheme, in)
	if err != nil {
		return nil, nil, err
	}
	group.VersionedResourcesStorageMap["v1"] = map[string]rest.Storage{
		"customresourcedefinitions": definitions, "customresourcedefinitions/status": customresourcedefinition.NewStatusREST(apiserver.Scheme, definitions),
	}
	if err := in.group("/apis", group); err != nil {
		return nil, nil, err
	}
	client, err := apiextensionsclient.NewForConfig(config)
	if err != nil {
		return nil, nil, err
	}
	factory := apiextensionsinformers.NewSharedInformerFactory(client, 0)
	informer := factory.Apiextensions().V1().CustomResourceDefinitions()
	establishes := establish.NewEstablishingController(informer, client.ApiextensionsV1())
	names := status.NewNamingConditionController(klog.FromContext(ctx), informer, client.ApiextensionsV1())
	handler, err = apiserver.NewCustomResourceDefinitionHandler(nil, nil, informer, http.NotFoundHandler(), in, in.admit, establishes, nil, nil, 1, in.authorizer, time.Minute, 30*time.Minute, nil, 3<<20)
	if err != nil {
		return nil, nil, err
	}
	in.definitions = informer.Informer()
	return handler, func() {
		var group sync.WaitGroup
		factory.Start(ctx.Done())
		group.Go(func() { names.RunWithContext(ctx) })
		group.Go(func() { establishes.RunWithContext(ctx) })
		in.stop = append(in.stop, factory.Shutdown, group.Wait)
	}, nil
}

// discover answers which groups and custom resources there are.
func (s *Server) discover(writer http.ResponseWriter, asked *http.Request, info *request.RequestInfo) bool {
	if info.IsResourceRequest || asked.Method != http.MethodGet {
		return false
	}
	var found runtime.Object
	switch path := strings.Split(strings.Trim(info.Path, "/"), "/"); {
	case info.Path == "/api":
		found = &metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}
	case info.Path == "/apis":
		list := &metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: slices.Clone(s.groups)}
		seen := map[schema.GroupVersion]bool{}
		for _, object := range s.definitions.GetStore().List() {
			spec := object.(*apiextensionsv1.CustomResourceDefinition).Spec
			version := schema.GroupVersion{Group: spec.Group, Version: spec.Versions[0].Name}
			if !seen[version] {
				seen[version] = true
				of := metav1.GroupVersionForDiscovery{GroupVersion: version.String(), Version: version.Version}
				list.Groups = append(list.Groups, metav1.APIGroup{Name: spec.Group, Versions: []metav1.GroupVersionForDiscovery{of}, PreferredVersion: of})
			}
		}
		found = list
	case len(path) == 3 && path[0] == "apis":
		list := &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: path[1] + "/" + path[2]}
		for _, object := range s.definitions.GetStore().List() {
			spec := object.(*apiextensionsv1.CustomResourceDefinition).Spec
			if spec.Group != path[1] || spec.Versions[0].Name != path[2] {
				continue
			}
			of := metav1.APIResource{
				Name: spec.Names.Plural, SingularName: spec.Names.Singular, Kind: spec.Names.Kind, Namespaced: spec.Scope == apiextensionsv1.NamespaceScoped,
				Verbs: metav1.Verbs{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"},
			}
			list.APIResources = append(list.APIResources, of)
			of.Verbs = metav1.Verbs{"get", "patch", "update"}
			if subresources := spec.Versions[0].Subresources; subresources != nil && subresources.Status != nil {
				of.Name = spec.Names.Plural + "/status"
				list.APIResources = append(list.APIResources, of)
			}
			if subresources := spec.Versions[0].Subresources; subresources != nil && subresources.Scale != nil {
				of.Name, of.Group, of.Version, of.Kind = spec.Names.Plural+"/scale", "autoscaling", "v1", "Scale"
				list.APIResources = append(list.APIResources, of)
			}
		}
		if list.APIResources == nil {
			return false // of Kubernetes
		}
		found = list
	default:
		return false
	}
	responsewriters.WriteRawJSON(http.StatusOK, found, writer)
	return true
}
