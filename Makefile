# Two commands do everything, on a fresh Debian machine with Go, make and root:
#
#   make demo    a pod keeps its address through the loss of its node
#   make test    all tests
#
# make help lists all.
#
# With GOWORK=off no dependency of test/ raises a version in the programs. Programs are
# compiled without cgo and with -trimpath; so are tests and what linters read, for Go keeps
# compiled packages by these settings, and would compile all of them once more for others.

export GOWORK := off
export CGO_ENABLED := 0
export GOFLAGS := $(shell go env GOFLAGS) -trimpath

CONTROLLER_GEN := go run sigs.k8s.io/controller-tools/cmd/controller-gen@v0.21.0
PROTOC_PLUGINS := -plugin 'go run google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.11' -plugin 'go run google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.1'
GOLANGCI_LINT  := go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
GREMLINS       := go run github.com/go-gremlins/gremlins/cmd/gremlins@v0.6.0
CRANE          := go run github.com/google/go-containerregistry/cmd/crane@v0.20.3
COSIGN         := go run github.com/sigstore/cosign/v3/cmd/cosign@v3.1.3
GOVULNCHECK    := go run golang.org/x/vuln/cmd/govulncheck@v1.9.0
ACTIONLINT     := go run github.com/rhysd/actionlint/cmd/actionlint@v1.7.12

PROGRAMS := berth-scheduler:./cmd/scheduler berth-controller:./cmd/controller berth-agent:./cmd/agent berth-console:./cmd/console berth-failover:./cmd/failover berth-speaker:./cmd/speaker berth-cni:./cni/shim berth-ipam:./cni/ipam berth-overlay:./cni/overlay berth-bridge:github.com/containernetworking/plugins/plugins/main/bridge berth-host-local:github.com/containernetworking/plugins/plugins/ipam/host-local berth-iptables:./cni/iptables kubectl-berth:./cmd/kubectl-berth
FUZZTIME ?= 30s
FUZZ     := $(shell grep -rlE '^func Fuzz' --include='*_test.go' . | grep -v '^./test/' | sort)
# Without vet, which compiles facts about every dependency: lint has all of it.
GOTEST   := go test -vet=off -timeout 60m
# Tests that run programs as processes: Go's cache of results does not see these change.
GOTESTPROGRAMS := $(GOTEST) -count=1

# Packages with tests that need neither a kernel nor an API server.
PURE   := $(addprefix ./,$(shell find cmd/console cmd/controller cmd/failover cmd/speaker cmd/internal cmd/kubectl-berth plugins ipam manifests -name '*_test.go' -printf '%h\n' | sort -u) agent/attachdef agent/chain agent/policy agent/policy/ruleset agent/profile agent/state cni/relay cni/shim speaker/plan)
# Packages that write pages of docs/reference.
REFERENCE := $(addprefix ./,$(shell grep -rl '^func TestReference' cmd | xargs -n1 dirname))
# API tests to run: a CI that runs them side by side gives each machine some.
API    ?= ./assigner/... ./fencer/... ./docs/... ./simulation/... ./policy/... ./kubectl/... ./scheduler/...
# Targets that parts of the tests need. make test makes them once, before: make leaves a part that waits for them until it has begun all others.
PREPARE ?= lab build
# The parts of make test. The longest are first, so that with -j2 none is left to run alone at the end.
PARTS  := test-e2e test-api test-machine test-unit test-node lint test-console test-chaos test-release test-rules
# End-to-end tests to run, as go test's -run.
E2E    ?= .
# Minors of Kubernetes of test-versions: those with a module in test/kubernetes.
MINORS ?= $(notdir $(wildcard test/kubernetes/*))
MUTATE ?= agent/chain agent/state plugins/floatingip $(filter-out ipam/api% ipam/assigner% ipam/fencer% ipam/remote ipam/ipamtest,$(shell find ipam -name '*_test.go' -printf '%h\n' | sort -u))

POLICY_CLUSTERS        ?= 15000
POLICY_KERNEL_CLUSTERS ?= 300
# The backend of network policies of all agents in tests, iptables or nftables; without one they choose.
export BERTH_TEST_POLICY_BACKEND = $(POLICY_BACKEND)

# Of images and of a release: its tag, where nodes find its images, and for which machines they are.
VERSION  ?= dev
REGISTRY ?= ghcr.io/berth-dev
ARCH     ?= amd64,arm64
KREW     := linux-amd64 linux-arm64 darwin-amd64 darwin-arm64 windows-amd64 windows-arm64
# A chart's version has no v, and is a version also where the programs' is none.
CHART_VERSION = $(if $(filter v%,$(VERSION)),$(VERSION:v%=%),0.0.0-$(VERSION))

CHAOS_ROUNDS ?= 20
CHAOS_PODS   ?= 2000
CHAOS_NODES  ?= 40
CHAOS_STEPS  ?= 300
CHAOS_PAUSE  ?= 60

.PHONY: all check help build images sbom chart krew release publish sign test-install demo lab lab-down test test-unit test-release test-rules test-machine test-policy test-race test-api test-import test-check-many test-trace test-reading-many test-chaos chaos test-node test-e2e test-kube-proxy test-failover test-network-types test-netpol test-node-policy test-policy-storm fuzz mutate vulncheck bench lint generate verify clean

all: build

# A target is listed with the text after its ##, below the last ##@.
help: ## List the targets.
	@awk -F ':.*## ' '/^##@ / { printf "\n%s\n", substr($$0, 5) } /^[a-z0-9-]+:.*## / { printf "  %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ Build and try

build: ## Compile Berth's programs into bin/.
	@$(foreach p,$(PROGRAMS),echo "go build $(lastword $(subst :, ,$(p)))" && go build -ldflags='-s -w' -o bin/$(firstword $(subst :, ,$(p))) $(lastword $(subst :, ,$(p))) &&) true
	cp cmd/kubectl-berth/kubectl_complete-berth bin/

images: ## Write container images of the programs for amd64 and arm64 (ARCH) into dist/, without an engine or a registry.
	cd test && go build -o bin/images ./cmd/images && bin/images -out ../dist -version $(VERSION) -registry $(REGISTRY) -arch $(ARCH)

chart: ## Package the chart, and the objects of its defaults for kubectl, into dist/.
	cd test/helm && go build -o ../bin/helm helm.sh/helm/v4/cmd/helm && go build -o ../bin/render ./render
	rm -rf dist/.chart && mkdir -p dist && cp -r manifests/chart dist/.chart
	sed -i 's/:dev$$/:$(VERSION)/; s#ghcr.io/berth-dev$$#$(REGISTRY)#; s#ghcr.io/berth-dev/berth#$(REGISTRY)/berth#' dist/.chart/Chart.yaml dist/.chart/values.yaml
	test/bin/helm package dist/.chart --version $(CHART_VERSION) --app-version $(VERSION) -d dist
	{ cat manifests/namespace.yaml && printf 'image: {tag: %s}\ncrds: {keep: false}\n' $(VERSION) | test/bin/render -chart dist/.chart -values -; } > dist/berth.yaml
	rm -r dist/.chart

krew: ## Pack the kubectl plugin for krew, with its manifest, into dist/: archives for six platforms.
	@rm -rf dist/.krew && mkdir -p dist/.krew
	@for p in $(KREW); do echo "go build kubectl-berth for $$p" && \
		GOOS=$${p%-*} GOARCH=$${p#*-} go build -ldflags='-s -w' -o dist/.krew/$$p/ ./cmd/kubectl-berth || exit 1; done
	cd test && go run ./cmd/krew -from ../dist/.krew -out ../dist -license ../LICENSE -version $(VERSION) -url https://github.com/berth-dev/berth/releases/download/$(VERSION)
	rm -r dist/.krew

sbom: images ## Write what the images are made of into dist/, as CycloneDX: the Go modules in each program, packages of Debian.
	cd test && go run ./cmd/sbom $(foreach i,scheduler controller agent console failover speaker,../dist/berth-$(i)-$(VERSION).tar)

release: sbom chart krew ## Write all that a release of VERSION has into dist/: images and what they are made of, chart, objects for kubectl, plugin archives, checksums.
	cd dist && sha256sum *.tar *.cdx.json *.tgz *.tar.gz *.yaml > SHA256SUMS

publish: ## Push the images and the chart of dist/ to REGISTRY.
	for i in scheduler controller agent console failover speaker; do \
		rm -rf dist/.layout && mkdir dist/.layout && tar -xf dist/berth-$$i-$(VERSION).tar -C dist/.layout && \
		$(CRANE) push dist/.layout $(REGISTRY)/berth-$$i:$(VERSION) || exit 1; done
	rm -r dist/.layout
	test/bin/helm push $(if $(filter localhost%,$(REGISTRY)),--plain-http) dist/berth-$(CHART_VERSION).tgz oci://$(REGISTRY)/charts

sign: ## Sign the images and the chart that publish pushed, what the images are made of, and the checksums, as the workflow that runs this (cosign, keyless).
	for i in berth-scheduler:$(VERSION) berth-controller:$(VERSION) berth-agent:$(VERSION) berth-console:$(VERSION) berth-failover:$(VERSION) berth-speaker:$(VERSION) charts/berth:$(CHART_VERSION); do \
		$(COSIGN) sign --yes $(REGISTRY)/$${i%%:*}@$$($(CRANE) digest $(REGISTRY)/$$i) || exit 1; done
	for i in scheduler controller agent console failover speaker; do \
		$(COSIGN) attest --yes --type cyclonedx --predicate dist/berth-$$i-$(VERSION).cdx.json $(REGISTRY)/berth-$$i@$$($(CRANE) digest $(REGISTRY)/berth-$$i:$(VERSION)) || exit 1; done
	$(COSIGN) sign-blob --yes --bundle dist/SHA256SUMS.sigstore.json dist/SHA256SUMS

demo: ## Show the main job on a real cluster; KEEP=1 leaves it up.
	cd test && go build -o bin/demo ./cmd/demo && go build -o bin/lab ./cmd/lab && bin/demo $(if $(KEEP),-keep)

lab: ## Build the command that runs clusters: test/bin/lab.
	cd test && go build -o bin/lab ./cmd/lab && bin/lab prepare

lab-down: lab ## Take down every cluster, also the rest of a crashed one.
	test/bin/lab down --all

clean: ## Remove build results.
	rm -rf bin test/bin dist

##@ Test while you work

check: ## Lint of changes since main, import rules, and all tests that need neither a kernel nor an API server: minutes.
	$(GOLANGCI_LINT) fmt --diff
	$(GOLANGCI_LINT) run --new-from-merge-base=main ./...
	cd test && $(GOLANGCI_LINT) run --new-from-merge-base=main ./...
	$(GOTEST) . $(PURE)

##@ Test: all of this must pass; the parts of make test may run side by side on machines of their own

test: $(PREPARE) ## All tests but the long forms.
	$(MAKE) PREPARE= $(PARTS)

lint: ## All of .golangci.yml, both modules, and the workflows.
	$(ACTIONLINT) -shellcheck= -pyflakes= .github/workflows/*.yml
	$(GOLANGCI_LINT) fmt --diff
	$(GOLANGCI_LINT) run ./...
	cd test && $(GOLANGCI_LINT) run ./...

test-unit: ## Beside the code: unit, model, kernel tests in namespaces.
	REQUIRE_NETNS=1 $(GOTEST) ./...
	cd test/helm && $(GOTEST) ./...

test-release: ## The parts of a release: images, what they are made of, the packages of Debian in them, plugin archives.
	cd test && REQUIRE_NETNS=1 $(GOTESTPROGRAMS) ./debian/... ./deploy/... ./image/... ./krew/... ./sbom/...

test-rules: ## Alerts and dashboards: when alerts fire, by Debian's promtool, which the first run fetches by the mirrors of the host's apt.
	cd test && $(GOTESTPROGRAMS) ./monitoring/...

test-machine: ## Drivers that this kernel may lack (VLAN, ipvlan, SR-IOV), on Debian's kernel in QEMU; one package alone with PACKAGE=./cni/vlan, and some of its tests with RUN=TestTraffic/ipvlan.
	cd test && BERTH_MACHINE_PACKAGE='$(PACKAGE)' BERTH_MACHINE_RUN='$(RUN)' $(GOTESTPROGRAMS) -v $(if $(PACKAGE),-run '^TestMachine$$') ./machine/

test-api: $(PREPARE) ## Scheduler and controller on a real API server, and the links and the objects of the documentation.
	cd test && $(GOTESTPROGRAMS) -p 2 -parallel 2 $(API) # four API servers at once: they wait more than they compute

.PHONY: test-console
test-console: $(PREPARE) ## kubectl berth console on a real API server: its API against its document, its pages in Debian's Chromium, which the first run fetches.
	cd test && $(GOTESTPROGRAMS) -parallel 2 ./console/...

test-node: $(PREPARE) ## Agent, shim and plugins on a real kernel, also beside the real firewalld and between real routers, whose packages of Debian the first run fetches (100 MB).
	cd test && REQUIRE_NETNS=1 $(GOTESTPROGRAMS) ./hostservices/ ./fabric/
	cd test && REQUIRE_NETNS=1 $(GOTESTPROGRAMS) -parallel 4 ./node/... # each with an API server of its own: they wait more than they compute

test-chaos: $(PREPARE) ## Three rounds of chaos, the same each time but for BERTH_CHAOS_SEED, and a judge of the result.
	cd test && BERTH_CHAOS_SEED=$(or $(BERTH_CHAOS_SEED),1) CHAOS_ROUNDS=3 $(GOTESTPROGRAMS) ./chaos/...

test-e2e: $(PREPARE) ## The lab, and Berth on it.
	cd test && $(GOTESTPROGRAMS) ./lab/... && $(GOTESTPROGRAMS) -v -run '$(E2E)' ./e2e/...

##@ Generate

generate: ## Deep copies and CRDs from ipam/api, manifests/ from the chart, Go code of the external assigner's and the fencer's protocol, pages of docs/reference.
	cd test && go run ./cmd/protoc -root .. $(PROTOC_PLUGINS) ipam/assigner/v1/assigner.proto ipam/fencer/v1/fencer.proto
	$(CONTROLLER_GEN) object paths=./ipam/api/... crd:crdVersions=v1 output:crd:dir=manifests/chart/crd
	cd test/helm && go build -o ../bin/render ./render
	test/bin/render -out manifests
	BERTH_GENERATE=1 $(GOTESTPROGRAMS) -run '^TestReference' $(REFERENCE)

verify: generate ## Fail if generated files or go.mod are not up to date.
	go mod tidy -diff && cd test && go mod tidy -diff
	git diff --exit-code -- ipam/api ipam/assigner/v1 ipam/fencer/v1 manifests docs/reference

##@ Test longer

test-race: ## test-unit under the race detector.
	REQUIRE_NETNS=1 CGO_ENABLED=1 $(GOTEST) -race ./...

test-policy: ## Network policies of POLICY_CLUSTERS (15000) random clusters, and of POLICY_KERNEL_CLUSTERS (300) with real packets, against the documents of the APIs.
	REQUIRE_NETNS=1 BERTH_TEST_POLICY_CLUSTERS=$(POLICY_CLUSTERS) BERTH_TEST_POLICY_KERNEL_CLUSTERS=$(POLICY_KERNEL_CLUSTERS) $(GOTESTPROGRAMS) -timeout 2h -v -run 'TestDifferential|TestKernel' ./agent/policy/policytest/

test-trace: lab build ## Each link of kubectl berth trace broken in turn on the lab, rogue hosts of both families that check --wire must find, and a bundle of kubectl berth dump --nodes.
	cd test && BERTH_TEST_TRACE=1 $(GOTESTPROGRAMS) -v -run TestTrace ./e2e/

test-check-many: lab ## How long kubectl berth check takes with CHECK_ADDRESSES (150000) addresses, and how much memory.
	cd test && BERTH_TEST_CHECK_ADDRESSES=$(or $(CHECK_ADDRESSES),150000) go test -count=1 -timeout 2h -v -run TestCheckMany ./kubectl/

test-reading-many: lab ## How long the reading commands of kubectl berth take with KUBECTL_ADDRESSES (150000) addresses.
	cd test && BERTH_TEST_KUBECTL_ADDRESSES=$(or $(KUBECTL_ADDRESSES),150000) go test -count=1 -timeout 2h -v -run TestReadingMany ./kubectl/

.PHONY: test-console-many
test-console-many: lab ## How long kubectl berth console takes to answer 200 requests a second, and how much memory, with CONSOLE_ADDRESSES (150000) addresses.
	cd test && BERTH_TEST_CONSOLE_ADDRESSES=$(or $(CONSOLE_ADDRESSES),150000) go test -count=1 -timeout 2h -v -run TestLoad ./console/

.PHONY: test-services-many
test-services-many: lab ## What SERVICES (1000) Services on SERVICE_NODES (5000) imitated nodes cost, and the death of one of these.
	cd test && BERTH_TEST_SERVICES=$(or $(SERVICES),1000) BERTH_TEST_SERVICE_NODES=$(or $(SERVICE_NODES),5000) go test -count=1 -timeout 2h -v -run TestMany ./scheduler/services/

.PHONY: test-day
test-day: ## A day of deploys on DAY_NODES (5000) nodes with DAY_ADDRESSES (150000) addresses, scheduler and controller in one process on API servers in memory: memory and queues do not grow.
	cd test && BERTH_TEST_DAY_NODES=$(or $(DAY_NODES),5000) BERTH_TEST_DAY_ADDRESSES=$(or $(DAY_ADDRESSES),150000) BERTH_TEST_DAY_HOURS=24 BERTH_TEST_DAY_DEPLOYS=1 go test -count=1 -timeout 12h -v -run TestDay ./simulation/day/

.PHONY: test-tenants
test-tenants: lab build ## Each policy of the page for tenants on the lab: pods of two tenants and a host outside reach whom the page says.
	cd test && BERTH_TEST_TENANTS=1 $(GOTESTPROGRAMS) -v -run TestTenants ./e2e/

.PHONY: test-bgp
test-bgp: ## BGP_NODES (5000) imitated nodes announce BGP_ADDRESSES (30) addresses each to Debian's FRR: its memory, and the time until all are behind the spine.
	cd test && REQUIRE_NETNS=1 BERTH_TEST_BGP_NODES=$(or $(BGP_NODES),5000) BERTH_TEST_BGP_ADDRESSES=$(or $(BGP_ADDRESSES),30) go test -count=1 -timeout 2h -v -run TestManyNodes ./fabric/

test-import: lab ## A migration of GALAXY_ADDRESSES (60000) from Galaxy, interrupted and continued.
	cd test && GALAXY_ADDRESSES=$(or $(GALAXY_ADDRESSES),60000) go test -count=1 -timeout 2h -v -run TestImportGalaxyMany ./scheduler/migration/

.PHONY: test-versions
test-versions: build ## The demo and the end-to-end tests (E2E) on real clusters of the other minors of Kubernetes that Berth supports (MINORS): the first time an hour for each.
	cd test && go build -o bin/demo ./cmd/demo
	cd test && for minor in $(MINORS); do export BERTH_LAB_KUBERNETES=$$minor; \
		bin/demo && $(GOTESTPROGRAMS) -v -run '$(E2E)' ./e2e/... || exit 1; done

.PHONY: test-docs
test-docs: lab build ## All of the tutorial on the lab: its commands print what the pages show.
	cd test && BERTH_TEST_DOCS=1 $(GOTESTPROGRAMS) -v -run TestTutorial ./e2e/

test-kube-proxy: lab build ## Pods beside kube-proxy in each of its modes: iptables and nftables on the lab, ipvs in the emulated machine.
	cd test && BERTH_TEST_KUBE_PROXY_MODES=1 $(GOTESTPROGRAMS) -v -run TestIPVS ./machine/
	cd test && BERTH_TEST_KUBE_PROXY_MODES=1 $(GOTESTPROGRAMS) -v -run TestKubeProxyModes ./e2e/

test-install: lab ## The life of an installation, with Helm on the lab: on one node of a cluster in use, whose nodes have other networks, then all; with the folders of k3s; install, upgrade, rollback, uninstall, install again, clean the nodes; with traffic throughout.
	cd test && BERTH_TEST_INSTALL=1 $(GOTESTPROGRAMS) -v ./install/

test-network-types: lab build ## Pods of each network type that this kernel has, on the lab: all among each other, and moves.
	cd test && BERTH_TEST_NETWORK_TYPES=1 $(GOTESTPROGRAMS) -v -run TestNetworkTypes ./e2e/

test-failover: lab build ## Failover on the lab: ten minutes without API server under traffic, most nodes cut off, a node that hangs and that a fencer powers off, agents that are replaced, all carriers lost at once, a node behind a port that passes nothing for a while, a Service whose node loses power.
	cd test && BERTH_TEST_FAILOVER_LONG=10m $(GOTESTPROGRAMS) -v -run 'TestFailover|TestFencer|TestAgentUpgrade|TestLastNode|TestLoadBalancer' ./e2e/

test-netpol: lab build ## All of Kubernetes' own tests of NetworkPolicy on the lab; with BERTH_NETPOL_FLOATING=1 their pods have floating IPs; BERTH_NETPOL_CASES are parts of names, separated by |.
	cd test && BERTH_TEST_NETPOL=1 go test -count=1 -timeout 4h -v -run 'TestNetpol$$' ./e2e/

test-node-policy: lab build ## Policies on a node with a real API server, for pods of each wiring: some 20 minutes, since the agent looks for damage once a minute.
	cd test && BERTH_TEST_NODE_POLICY=1 REQUIRE_NETNS=1 $(GOTESTPROGRAMS) -v -run TestPolicy ./node/

test-policy-storm: lab build ## 1,000 policies and 500 pods that change for a minute, and a judge of the kernel's rules in the end.
	cd test && BERTH_TEST_POLICY_STORM=1 REQUIRE_NETNS=1 $(GOTESTPROGRAMS) -v -run TestPolicyStorm ./node/

chaos: lab ## Hours of it: CHAOS_ROUNDS, CHAOS_PODS, CHAOS_NODES, CHAOS_STEPS in a round, at most CHAOS_PAUSE milliseconds between two; drawn anew each time but for BERTH_CHAOS_SEED.
	cd test && CHAOS_ROUNDS=$(CHAOS_ROUNDS) CHAOS_PODS=$(CHAOS_PODS) CHAOS_NODES=$(CHAOS_NODES) CHAOS_STEPS=$(CHAOS_STEPS) CHAOS_PAUSE=$(CHAOS_PAUSE) go test -count=1 -timeout 12h -v -run TestChaos ./chaos/

fuzz: ## Every fuzz target for FUZZTIME (30s).
	@for file in $(FUZZ); do for target in $$(sed -nE 's/^func (Fuzz[A-Za-z0-9_]*).*/\1/p' $$file); do \
		echo "$$target in $$file"; go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) ./$$(dirname $$file) || exit 1; done; done

mutate: ## Change the code of MUTATE, the pure packages, in small ways: some test of the package should notice each. Hours.
	@# Without --exclude-files gremlins would change the packages below each package too.
	@for package in $(MUTATE); do echo "$$package"; GOFLAGS="$$GOFLAGS -ldflags=-w" $(GREMLINS) unleash --exclude-files / --timeout-coefficient 10 -S lct ./$$package || exit 1; done

vulncheck: ## Vulnerabilities that are known of Go and of the modules, in code that Berth calls: asks https://vuln.go.dev, and fails where it is not reached.
	$(GOVULNCHECK) ./...

##@ Measure

bench: ## All benchmarks; BENCH='-small' is a quick look, BENCH_OUT the folder for results.
	cd test && go build -o bin/bench ./bench && BENCH_OUT='$(BENCH_OUT)' bin/bench $(BENCH)
