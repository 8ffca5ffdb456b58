// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/simulation/program"
	"github.com/berth-dev/berth/test/simulation/proxy"
)

// Instance is a program of Berth's that runs, and the proxy that it
// reaches the API server through.
type Instance struct {
	*proxy.Proxy
	*program.Process
	w   *World
	log string
}

// SchedulerOptions say how a scheduler differs from the manifests.
type SchedulerOptions struct {
	// Elect lets it lead only with the lease, which ends earlier than the
	// manifests say, so that a test need not wait, and not so early that a leader
	// on a busy machine loses it.
	Elect bool
	// Profiles are the names of more profiles, all like the first.
	Profiles []string
	// Args are the arguments of the plugin.
	Args map[string]any
	// Values are the chart's that its configuration is made with; nil: the defaults.
	Values map[string]any
	// Flags are added to the command line.
	Flags []string
	// Serve is the address where it is asked about its health and metrics;
	// empty: none.
	Serve string
}

// Scheduler starts berth-scheduler with the configuration of the manifests.
func (w *World) Scheduler(options SchedulerOptions) *Instance {
	w.T.Helper()
	proxy := w.proxyFor("berth-scheduler")
	config, err := program.SchedulerConfig()
	if options.Values != nil {
		config, err = program.SchedulerConfigOf(w.Chart(options.Values))
	}
	if err != nil {
		w.T.Fatal(err)
	}
	if w.virtual == nil {
		config.Connect(w.kubeconfig(proxy))
	}
	config.Elect(options.Elect, "10s", "8s", "1s")
	if options.Args != nil {
		config.Configure(options.Args)
	}
	for _, name := range options.Profiles {
		another := maps.Clone(config.Profile())
		another["schedulerName"] = name
		config["profiles"] = append(config["profiles"].([]any), another)
	}
	if w.virtual != nil {
		if len(options.Flags) > 0 || options.Serve != "" {
			w.T.Fatal("a scheduler that is no process has no flags")
		}
		return w.startVirtual(proxy, "berth-scheduler", func(ctx context.Context, api *rest.Config) error { return w.virtual.Scheduler(ctx, api, config) })
	}
	flags := []string{"--config=" + w.File("scheduler-*.yaml", config), "--leader-elect-resource-namespace=" + w.System, "--secure-port=0", "--v=4", program.NeverAgain}
	flags = append(flags, options.Flags...)
	if options.Serve != "" {
		kubeconfig := w.kubeconfig(proxy)
		flags = append(flags, program.ServeAt(options.Serve)...)
		flags = append(flags, "--cert-dir="+w.T.TempDir(), "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig)
	}
	return w.start(proxy, "berth-scheduler", flags...)
}

// Controller starts berth-controller, without leader election unless a flag says
// otherwise.
func (w *World) Controller(flags ...string) *Instance {
	w.T.Helper()
	proxy := w.proxyFor("berth-controller")
	if w.virtual != nil {
		if len(flags) > 0 {
			w.T.Fatal("a controller that is no process has no flags")
		}
		return w.startVirtual(proxy, "berth-controller", w.virtual.Controller)
	}
	flags = append([]string{"--kubeconfig=" + w.kubeconfig(proxy), "--leader-elect=false", "--secure-port=0", "--v=4"}, flags...)
	return w.start(proxy, "berth-controller", flags...)
}

// FailoverRights gives berth-failover the rights that it has with the chart, and with a fencer at
// an address; empty: without one.
func (w *World) FailoverRights(fencer string) {
	w.T.Helper()
	objects := slices.DeleteFunc(w.Chart(map[string]any{"failover": map[string]any{"enabled": true, "fencer": map[string]any{"address": fencer}}}), func(o *unstructured.Unstructured) bool {
		return !strings.Contains(o.GetName(), "failover") || slices.Contains([]string{"Deployment", "PodMonitor", "PodDisruptionBudget"}, o.GetKind())
	})
	if err := deploy.Apply(w.Ctx, w.Config, objects); err != nil {
		w.T.Fatal(err)
	}
}

// Failover starts berth-failover with its rights and a fencer at an address.
func (w *World) Failover(fencer string) *Instance {
	w.T.Helper()
	w.FailoverRights(fencer)
	proxy := w.proxyFor("berth-failover")
	return w.start(proxy, failover(w.T), "--kubeconfig="+w.kubeconfig(proxy), "--leader-elect=false", "--secure-port=0", "--v=2", "--namespace="+w.System, "--fencer-address="+fencer)
}

// proxyFor starts a proxy that makes requests as a ServiceAccount of Berth's
// namespace.
func (w *World) proxyFor(account string) *proxy.Proxy {
	w.T.Helper()
	options := proxy.Options{Identity: proxy.ServiceAccount(w.System, account)}
	if w.virtual != nil {
		p, err := proxy.New(w.Config, options)
		if err != nil {
			w.T.Fatal(err)
		}
		return p
	}
	p, err := proxy.Start(w.Ctx, w.Config, options)
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(p.Stop)
	return p
}

// Await waits until a tap stops a request.
func (w *World) Await(tap *proxy.Tap) {
	w.T.Helper()
	ctx, cancel := w.patient()
	defer cancel()
	if err := tap.Wait(ctx); err != nil {
		w.T.Fatal(err)
	}
}

// AsNode is a client with a kubelet's credentials.
func (w *World) AsNode(name string) *kubernetes.Clientset {
	w.T.Helper()
	config := rest.CopyConfig(w.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:node:" + name, Groups: []string{"system:nodes", "system:authenticated"}}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		w.T.Fatal(err)
	}
	return kube
}

// AsController is a client with the identity of berth-controller.
func (w *World) AsController() *client.Client {
	w.T.Helper()
	config := rest.CopyConfig(w.Config)
	who := proxy.ServiceAccount(w.System, "berth-controller")
	config.Impersonate = rest.ImpersonationConfig{UserName: who.UserName, Groups: who.Groups}
	api, err := client.NewForConfig(config)
	if err != nil {
		w.T.Fatal(err)
	}
	return api
}

// kubeconfig leads to a proxy, which adds the identity.
func (w *World) kubeconfig(p *proxy.Proxy) string {
	w.T.Helper()
	return w.File("kubeconfig-*", p.Kubeconfig())
}

// File writes content as YAML into a file that ends with the test, and returns its path.
func (w *World) File(pattern string, content any) string {
	w.T.Helper()
	file, err := os.CreateTemp(w.T.TempDir(), pattern)
	if err != nil {
		w.T.Fatal(err)
	}
	defer file.Close()
	return w.WriteFile(file.Name(), content)
}

// WriteFile writes content as YAML, and returns path.
func (w *World) WriteFile(path string, content any) string {
	w.T.Helper()
	text, err := yaml.Marshal(content)
	if err != nil {
		w.T.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		w.T.Fatal(err)
	}
	return path
}

// start runs a program until Kill or the end of the test, whichever way that
// ends.
func (w *World) start(p *proxy.Proxy, name string, args ...string) *Instance {
	w.T.Helper()
	log, err := os.CreateTemp(w.T.TempDir(), name+"-*.log")
	if err != nil {
		w.T.Fatal(err)
	}
	defer log.Close()
	process, err := program.Start(log, Program(name), args...)
	if err != nil {
		w.T.Fatal(err)
	}
	return w.started(&Instance{Proxy: p, Process: process, w: w, log: log.Name()})
}

// startVirtual runs a program in this process, until Kill or the end of the test.
func (w *World) startVirtual(p *proxy.Proxy, name string, run func(ctx context.Context, api *rest.Config) error) *Instance {
	w.T.Helper()
	log, err := os.CreateTemp(w.T.TempDir(), name+"-*.log")
	if err != nil {
		w.T.Fatal(err)
	}
	ctx, cancel := context.WithCancel(klog.NewContext(w.Ctx, textlogger.NewLogger(textlogger.NewConfig(textlogger.Verbosity(5), textlogger.Output(log)))))
	process := program.Run(name, func() error {
		defer log.Close()
		defer cancel()
		return run(ctx, &rest.Config{Host: "http://" + name, Transport: w.virtual.Transport(p)})
	}, func() {
		p.Stop()
		cancel()
	})
	return w.started(&Instance{Proxy: p, Process: process, w: w, log: log.Name()})
}

// started ends a program with the test, and judges it then.
func (w *World) started(r *Instance) *Instance {
	w.T.Cleanup(func() {
		r.Kill()
		for _, c := range r.Forbidden() {
			if !w.whileCRDsEnd(c) && !w.WhileRestored(c) {
				w.T.Errorf("%s is forbidden %s %s", r.Name(), c.Method, c.Path)
			}
		}
		if w.T.Failed() {
			w.T.Logf("the end of %s (%d)'s log:\n%s", r.Name(), r.PID(), program.Tail(r.log, 60))
		}
	})
	return r
}

// whileCRDsEnd says of a refused request that the API server refuses it to everybody:
// "create not allowed while custom resource definition is terminating".
func (w *World) whileCRDsEnd(c proxy.Call) bool {
	return c.At.After(w.CRDsDeleted) && c.At.Before(w.CRDsGone) && c.Method == http.MethodPost && strings.HasPrefix(c.Path, "/apis/berth.dev/")
}

// WhileRestored says of a refused request that the API server, which just starts, refuses it to
// everybody: it does not know roles yet.
func (w *World) WhileRestored(c proxy.Call) bool {
	return c.At.After(w.restoring) && c.At.Before(w.restored)
}

// Log returns the path of its log.
func (r *Instance) Log() string { return r.log }

// Attempts counts the attempts to schedule a pod that the log tells of.
func (r *Instance) Attempts() int {
	text, err := os.ReadFile(r.log)
	if err != nil {
		r.w.T.Fatal(err)
	}
	return strings.Count(string(text), "Attempting to schedule pod")
}
