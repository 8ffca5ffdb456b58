# Two commands do everything, on a fresh Debian machine with Go, make and root:
#
#   make demo    a pod keeps its address through the loss of its node
#   make test    the tests of what a change can break for every user
#
# make test-all runs all other tests; make help lists all targets.
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

FUZZTIME ?= 30s
# Without vet, which compiles facts about every dependency: lint has all of it.
GOTEST   := go test -vet=off -timeout 60m

# Packages that write pages of docs/reference.
REFERENCE := $(addprefix ./,$(shell grep -rl '^func TestReference' cmd | xargs -n1 dirname))
MUTATE ?= agent/chain agent/state plugins/floatingip $(filter-out ipam/api% ipam/assigner% ipam/fencer% ipam/remote ipam/ipamtest,$(shell find ipam -name '*_test.go' -printf '%h\n' | sort -u))

# The backend of network policies of all agents in tests, iptables or nftables; without one they choose.
export BERTH_TEST_POLICY_BACKEND = $(POLICY_BACKEND)

# Of images and of a release: its tag, where nodes find its images, and for which machines they are.
VERSION  ?= dev
REGISTRY ?= ghcr.io/berth-dev
ARCH     ?= amd64,arm64
PROGRAMS := $(filter-out kubectl-berth,$(patsubst cmd/%/main.go,%,$(wildcard cmd/*/main.go)))
KREW     := linux-amd64 linux-arm64 darwin-amd64 darwin-arm64 windows-amd64 windows-arm64
# A chart's version has no v, and is a version also where the programs' is none.
CHART_VERSION = $(if $(filter v%,$(VERSION)),$(VERSION:v%=%),0.0.0-$(VERSION))
DOCS = $(or $(filter v%,$(VERSION)),main)

CHAOS_ROUNDS ?= 20
CHAOS_PODS   ?= 2000
CHAOS_NODES  ?= 40
CHAOS_STEPS  ?= 300
CHAOS_PAUSE  ?= 60

.PHONY: $(shell sed -nE 's/^([a-z0-9-]+):.*## .*/\1/p' Makefile) all clean

all: build

# A target is listed with the text after its ##, below the last ##@.
help: ## List the targets.
	@awk -F ':.*## ' '/^##@ / { printf "\n%s\n", substr($$0, 5) } /^[a-z0-9-]+:.*## / { printf "  %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ Build and try

build: ## Compile Berth's programs into bin/.
	cd test && go run ./cmd/compile berth
	cp cmd/kubectl-berth/kubectl_complete-berth bin/

images: ## Write container images of the programs for amd64 and arm64 (ARCH) into dist/, without an engine or a registry.
	cd test && go build -o bin/images ./cmd/images && bin/images -out ../dist -version $(VERSION) -registry $(REGISTRY) -arch $(ARCH)

# Images and the links to the docs, of alerts too, are of VERSION in all of a release.
manifests: ## Write what kubectl applies into dist/: the objects of the chart's defaults, the CRDs alone, and manifests/ as an archive.
	cd test/helm && go build -o ../bin/render ./render
	rm -rf dist/.release && mkdir -p dist/.release/manifests && cp -r manifests/. dist/.release/manifests
	find dist/.release -name '*.yaml' -exec sed -i -E 's/([: ])dev$$/\1$(VERSION)/; s#ghcr.io/berth-dev($$|/berth)#$(REGISTRY)\1#; s#/(blob|tree)/main/#/\1/$(DOCS)/#' {} +
	{ cat manifests/namespace.yaml && echo 'crds: {keep: false}' | test/bin/render -chart dist/.release/manifests/chart -values -; } >dist/berth.yaml
	cat dist/.release/manifests/crd/*.yaml >dist/berth-crds.yaml
	tar -C dist/.release --exclude='*_test.go' --exclude=manifests/chart --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -c manifests | gzip -n >dist/berth-manifests-$(VERSION).tar.gz

chart: manifests ## Package the chart into dist/.
	cd test/helm && go build -o ../bin/helm helm.sh/helm/v4/cmd/helm
	test/bin/helm package dist/.release/manifests/chart --version $(CHART_VERSION) -d dist
	rm -r dist/.release

krew: ## Pack the kubectl plugin for krew, with its manifest, into dist/: archives for six platforms.
	@rm -rf dist/.krew && mkdir -p dist/.krew
	@for p in $(KREW); do echo "go build kubectl-berth for $$p" && \
		GOOS=$${p%-*} GOARCH=$${p#*-} go build -ldflags='-s -w' -o dist/.krew/$$p/ ./cmd/kubectl-berth || exit 1; done
	cd test && go run ./cmd/krew -from ../dist/.krew -out ../dist -license ../LICENSE -completion ../cmd/kubectl-berth/kubectl_complete-berth -version $(VERSION) -url https://github.com/berth-dev/berth/releases/download/$(VERSION)
	rm -r dist/.krew

sbom: images ## Write what the images are made of into dist/, as CycloneDX: the Go modules in each program, packages of Debian.
	cd test && go run ./cmd/sbom $(foreach i,$(PROGRAMS),../dist/berth-$(i)-$(VERSION).tar)

release: sbom chart krew ## Write all that a release of VERSION has into dist/: images and what they are made of, chart, manifests, plugin archives, checksums.
	cd dist && sha256sum *.tar *.cdx.json *.tgz *.tar.gz *.yaml > SHA256SUMS

publish: ## Push the images and the chart of dist/ to REGISTRY, and write their digests into dist/.pushed.
	cd test/helm && go build -o ../bin/helm helm.sh/helm/v4/cmd/helm
	rm -f dist/.pushed
	for i in $(PROGRAMS); do \
		rm -rf dist/.layout && mkdir dist/.layout && tar -xf dist/berth-$$i-$(VERSION).tar -C dist/.layout && \
		$(CRANE) push dist/.layout $(REGISTRY)/berth-$$i:$(VERSION) >>dist/.pushed || exit 1; done
	test/bin/helm push $(if $(filter localhost%,$(REGISTRY)),--plain-http) dist/berth-$(CHART_VERSION).tgz oci://$(REGISTRY)/charts
	digest=$$($(CRANE) digest $(REGISTRY)/charts/berth:$(CHART_VERSION)) && echo $(REGISTRY)/charts/berth@$$digest >>dist/.pushed
	rm -r dist/.layout
	sed -i -E 's/^(.*)@sha256:(.*)$$/\2  \1/' dist/.pushed # as sha256sum writes it

sign: ## Sign the images and the chart that publish pushed, what the images are made of, and the checksums, as the workflow that runs this (cosign, keyless).
	while read -r digest name; do $(COSIGN) sign --yes $$name@sha256:$$digest </dev/null || exit 1; done <dist/.pushed
	while read -r digest name; do case $$name in */charts/*) continue;; esac; \
		$(COSIGN) attest --yes --type cyclonedx --predicate dist/$${name##*/}-$(VERSION).cdx.json $$name@sha256:$$digest </dev/null || exit 1; done <dist/.pushed
	$(COSIGN) sign-blob --yes --bundle dist/SHA256SUMS.sigstore.json dist/SHA256SUMS

demo: ## Show the main job on a real cluster; KEEP=1 leaves it up.
	cd test && go run ./cmd/compile demo && bin/demo $(if $(KEEP),-keep)

lab: ## Build the command that runs clusters: test/bin/lab.
	cd test && go run ./cmd/compile lab && bin/lab prepare

lab-down: lab ## Take down every cluster, also the rest of a crashed one.
	test/bin/lab down --all

clean: ## Remove build results.
	rm -rf bin test/bin dist

##@ Test

# make test PART="node e2e" runs these parts alone, make test PACKAGE=test/node RUN='^TestCrash$$' these tests of a package.
PARTS = cd test && go build -o bin/parts ./parts && bin/parts $(if $(PART),-part '$(PART)') $(if $(PACKAGE),-package '$(PACKAGE)' $(if $(RUN),-run '$(RUN)'))

check: ## While you work: lint of changes since main, import rules, and the tests that need neither a kernel nor an API server. Three minutes.
	$(GOLANGCI_LINT) fmt --diff
	$(GOLANGCI_LINT) run --new-from-merge-base=main ./...
	cd test && $(GOLANGCI_LINT) run --new-from-merge-base=main ./...
	$(PARTS) -short -part unit

test: ## What a change can break for every user: go test -short of all packages. A quarter of an hour.
	$(PARTS) -short

test-all: ## All tests but the ones of hours below; goes on where it was interrupted. Hours, in parts (make parts).
	$(PARTS)

test-conformance: ## Kubernetes' own conformance tests of apps, network, node and scheduling, for pods with floating IPs: a part of test-all.
	$(PARTS) -part conformance

test-turn: ## The part of test-all whose turn it is: another one for each commit.
	$(PARTS) -turn

parts: ## List the parts of test and test-all.
	@$(PARTS) -list

lint: ## All of .golangci.yml, both modules, and the workflows.
	$(ACTIONLINT) -shellcheck= -pyflakes= .github/workflows/*.yml
	$(GOLANGCI_LINT) fmt --diff
	$(GOLANGCI_LINT) run ./...
	cd test && $(GOLANGCI_LINT) run ./...

##@ Generate

generate: ## Deep copies and CRDs from ipam/api, manifests/ from the chart, Go code of the external assigner's and the fencer's protocol, pages of docs/reference.
	cd test && go run ./cmd/protoc -root .. $(PROTOC_PLUGINS) ipam/assigner/v1/assigner.proto ipam/fencer/v1/fencer.proto
	$(CONTROLLER_GEN) object paths=./ipam/api/... crd:crdVersions=v1 output:crd:dir=manifests/chart/crd
	cd test/helm && go build -o ../bin/render ./render
	test/bin/render -out manifests
	BERTH_GENERATE=1 $(GOTEST) -count=1 -run '^TestReference' $(REFERENCE)

verify: generate ## Fail if generated files or go.mod are not up to date.
	go mod tidy -diff && cd test && go mod tidy -diff
	git diff --exit-code -- ipam/api ipam/assigner/v1 ipam/fencer/v1 manifests docs/reference

##@ Test for hours

mutate-promises: lab build ## Make a small error in the product for each promise of README and docs: a test finds each.
	cd test && go build -o bin/promises ./promises && bin/promises

test-race: ## Tests beside the code under the race detector.
	REQUIRE_NETNS=1 CGO_ENABLED=1 $(GOTEST) -race ./...

day: ## HOURS (24) of deploys on 5,000 nodes with 150,000 addresses, in virtual time and memory: memory and queues do not grow; an update of 5,000 pods in steps.
	cd test && BERTH_TEST_HOURS=$(or $(HOURS),24) go test -count=1 -timeout 12h -v -run 'TestDay|TestUpdateOfMany' ./simulation/day/

chaos: lab ## Hours of it: CHAOS_ROUNDS, CHAOS_PODS, CHAOS_NODES, CHAOS_STEPS in a round, at most CHAOS_PAUSE milliseconds between two.
	cd test && CHAOS_ROUNDS=$(CHAOS_ROUNDS) CHAOS_PODS=$(CHAOS_PODS) CHAOS_NODES=$(CHAOS_NODES) CHAOS_STEPS=$(CHAOS_STEPS) CHAOS_PAUSE=$(CHAOS_PAUSE) go test -count=1 -timeout 12h -v -run TestChaos ./chaos/

fuzz: ## Every fuzz target for FUZZTIME (30s).
	@$(MAKE) -s fuzz-targets | while read package target; do \
		echo "$$target in $$package"; go test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) $$package </dev/null || exit 1; done

fuzz-targets: ## List the fuzz targets: package and function.
	@grep -roE '^func Fuzz[A-Za-z0-9_]*' --include='*_test.go' --exclude-dir=test . | sed -E 's#/[^/]*:func # #' | sort

mutate: ## Change the code of MUTATE, the pure packages, in small ways: some test of the package should notice each. Hours.
	@# Without --exclude-files gremlins would change the packages below each package too.
	@for package in $(MUTATE); do echo "$$package"; GOFLAGS="$$GOFLAGS -ldflags=-w" $(GREMLINS) unleash --exclude-files / --timeout-coefficient 10 -S lct ./$$package || exit 1; done

vulncheck: ## Vulnerabilities that are known of Go and of the modules, in code that Berth calls: asks https://vuln.go.dev, and fails where it is not reached.
	$(GOVULNCHECK) ./...

##@ Measure

bench: ## All benchmarks; BENCH='-small' is a quick look, BENCH_OUT the folder for results.
	cd test && go build -o bin/bench ./bench && BENCH_OUT='$(BENCH_OUT)' bin/bench $(BENCH)
