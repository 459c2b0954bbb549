# "make" lists the targets. All results are in build/.

SHELL := /bin/bash
.DEFAULT_GOAL := help
export CGO_ENABLED ?= 0
# Programs, images and tests have the same flags, so they share Go's build cache.
export GOFLAGS := $(filter-out -trimpath,$(GOFLAGS)) -trimpath

BUILD := build
BIN := $(BUILD)/bin
STEP := .ci/step

IG_MODULE := github.com/inspektor-gadget/inspektor-gadget
IG_VERSION = $(shell go list -m -f '{{.Version}}' $(IG_MODULE))
VERSION = $(or $(shell git describe --tags --always --dirty 2>/dev/null),unknown)
LDFLAGS = -X $(IG_MODULE)/internal/version.version=$(IG_VERSION) -X main.version=$(VERSION)

GADGETS := $(notdir $(patsubst %/gadget.yaml,%,$(wildcard gadgets/*/gadget.yaml)))
GADGET_TAG ?= dev
# These Debian packages compile eBPF programs.
EBPF_PACKAGES := clang llvm libbpf-dev linux-libc-dev libc6-dev
# These Debian packages compile the tests' C program.
C_PACKAGES := clang binutils libc6-dev
# These Debian packages build and run the programs with known profiles (test/loads).
LOAD_PACKAGES := bash binutils default-jdk-headless g++ gcc libc6-dev nodejs openssl perl php-cli python3 ruby rustc sqlite3 xz-utils
# These Debian packages are for programs with runtimes that are not from Debian.
APART_PACKAGES := binutils gcc libc6-dev mmdebstrap mono-mcs npm
# These Debian packages are for the programs of test/symbols, and for the tools that it compares with.
SYMBOL_PACKAGES := bash binutils clang g++ gcc libc6-arm64-cross libc6-dev libsqlite3-0 libstdc++6-arm64-cross llvm openssl perl python3 rustc xz-utils

GOLANGCI_VERSION := v2.15.0
# These are the modules of this repository. Each has its own go.mod.
MODULES := $(filter-out $(BUILD)/%,$(patsubst %/,%,$(dir $(wildcard go.mod $(foreach depth,* */* */*/* */*/*/*,$(depth)/go.mod)))))
# In this module, linters would read all of Kubernetes for a quarter of an hour. Only the build checks this module.
LINTED := $(filter-out test/k8s/modules/kubernetes,$(MODULES))

##@ Start here

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: build gadgets $(BIN)/profile ## Show which functions use CPU time on this machine, without any backend (root)
	@$(BIN)/profile demo -o $(BUILD)/demo

# PID=, COMM= or CONTAINER= selects the processes to profile. SECONDS= is the duration. PROFILE= passes more flags.
PROFILE_FLAGS = $(if $(PID),--pid $(PID)) $(if $(COMM),--comm '$(COMM)') $(if $(CONTAINER),--container '$(CONTAINER)') $(if $(SECONDS_ASKED),--seconds $(SECONDS_ASKED)) $(PROFILE)
# The shell has a variable SECONDS, too. So make uses it only from its command line or environment.
SECONDS_ASKED = $(if $(filter command line environment%,$(origin SECONDS)),$(SECONDS))

# With an empty PID=, for example from a $(pidof …) that found no process, "make profile" would profile the whole machine.
ifneq ($(filter profile,$(MAKECMDGOALS)),)
$(foreach name,PID COMM CONTAINER,$(if $(filter command line environment%,$(origin $(name))),$(if $(strip $($(name))),,$(error \
	$(name)= has no value. A command in $$(...) gives no value if it finds nothing))))
endif

.PHONY: profile
profile: build gadgets $(BIN)/profile ## Show what PID=, COMM= or CONTAINER= does for SECONDS=30 (root)
	@$(BIN)/profile $(PROFILE_FLAGS)

##@ Build

.PHONY: build
build: $(BIN)/unwinder ## Build ig and the programs that it starts into build/bin
	@$(STEP) "building $(BIN)/ig (a few minutes the first time)" \
		go build -buildvcs=false -ldflags "$(LDFLAGS)" -o $(BIN)/ig ./cmd/ig

.PHONY: $(BIN)/unwinder
$(BIN)/unwinder:
	@$(STEP) "building $(BIN)/unwinder" go -C cmd/unwinder build -buildvcs=false -ldflags "-s -w" -o $(CURDIR)/$(BIN)/unwinder .

.PHONY: unwinder-bpf
unwinder-bpf: ## Compile the unwinder's entry programs with the profiler's headers; commit the result
	@.ci/packages clang llvm
	@cmd/unwinder/bpf/build.sh cmd/unwinder/bpf

.PHONY: gadgets
gadgets: $(GADGETS:%=$(BUILD)/gadgets/%.tar) ## Build the gadget images (root, if headers or packages are missing)
	@.ci/gadgets load $(BIN)/ig $(foreach g,$(GADGETS),$(g):$(GADGET_TAG)=$(BUILD)/gadgets/$(g).tar)

.PHONY: ig-gadgets
ig-gadgets: build ebpf-tools ## Build Inspektor Gadget's own gadgets with a stack from its module into build/ig-gadgets
	@.ci/ig-gadgets $(BIN)/ig $(BUILD)/ig-gadgets

# These have an eBPF program; the others have an operator instead.
EBPF_GADGETS := $(notdir $(patsubst %/program.bpf.c,%,$(wildcard gadgets/*/program.bpf.c)))
$(EBPF_GADGETS:%=$(BUILD)/gadgets/%.tar): $(BUILD)/gadgets/%.tar: gadgets/%/program.bpf.c $(wildcard gadgets/*/*.h) | ebpf-tools
.PHONY: ebpf-tools
ebpf-tools:
	@.ci/packages $(EBPF_PACKAGES)
	@.ci/headers

# A change of the images' tag rebuilds them.
.PHONY: FORCE
$(BUILD)/gadgets/tag: FORCE
	@mkdir -p $(@D)
	@[ "$$(cat $@ 2>/dev/null)" = "$(GADGET_TAG)" ] || echo "$(GADGET_TAG)" >$@

$(BUILD)/gadgets/%.tar: gadgets/%/gadget.yaml $(BUILD)/gadgets/tag | build
	@mkdir -p $(@D)
	@echo "building the gadget $*:$(GADGET_TAG)"
	@.ci/gadgets build $(BIN)/ig $*:$(GADGET_TAG) gadgets/$* $@

$(BIN)/nfpm: test/host/nfpm/go.mod
	@$(STEP) "building $@ (a minute, once)" go -C test/host/nfpm build -buildvcs=false -ldflags "-s -w" -o $(CURDIR)/$@ github.com/goreleaser/nfpm/v2/cmd/nfpm

$(BIN)/cyclonedx-gomod: cmd/ig/package/sbom/go.mod
	@$(STEP) "building $@ (a minute, once)" go -C cmd/ig/package/sbom build -buildvcs=false -ldflags "-s -w" -o $(CURDIR)/$@ github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod

# This is the version of a tag for deb and rpm: v1.0.0-rc.1 is 1.0.0~rc.1, which sorts below 1.0.0. Between releases, it is a
# version that sorts below all releases.
PACKAGE_VERSION ?= $(or $(subst -,~,$(patsubst v%,%,$(shell git describe --tags --exact-match --match 'v*' 2>/dev/null))),0.0.0~$(shell git rev-list --count HEAD).$(shell git rev-parse --short HEAD))

.PHONY: package-version
package-version:
	@echo '$(PACKAGE_VERSION)'

.PHONY: $(BIN)/gadgetctl
$(BIN)/gadgetctl:
	@$(STEP) "building $@" go build -buildvcs=false -ldflags "-s -w $(LDFLAGS)" -o $@ $(IG_MODULE)/cmd/gadgetctl

.PHONY: packages
packages: build gadgets $(BIN)/nfpm $(BIN)/profile $(BIN)/gadgetctl ## Build a deb and an rpm with ig, its gadgets and a service into build/package
	@cmd/ig/package/build.sh $(BUILD) $(BIN) $(GADGET_TAG) $(PACKAGE_VERSION) $(shell go env GOARCH)

.PHONY: release
release: build gadgets $(BIN)/nfpm $(BIN)/cyclonedx-gomod ## Build a release's files for both architectures into build/release: archives, packages, SBOMs, checksums
	@cmd/ig/package/release.sh $(BUILD) $(GADGET_TAG) $(PACKAGE_VERSION) "$(LDFLAGS)"

.PHONY: demo-collector
demo-collector: build gadgets collector $(BIN)/profile ## Profile a Collector under load and show what a setting changes (root)
	@for compression in gzip none; do \
		$(E2E) ./test/scale -nodes 500 -duration 20s -compression $$compression -profile $(CURDIR)/$(BUILD)/demo-collector/$$compression || exit 1; done
	@$(BIN)/profile diff $(BUILD)/demo-collector/gzip $(BUILD)/demo-collector/none

.PHONY: image
image: $(BIN)/imagebuild ## Build the image of the daemon for both architectures into build/image, without a container daemon
	@$(STEP) "building the daemon's image (a few minutes the first time)" $(BIN)/imagebuild -manifest cmd/gadgettracermanager/image.yaml -arch amd64,arm64 -layout $(BUILD)/image

.PHONY: $(BIN)/profile
$(BIN)/profile:
	@$(STEP) "building $@" go build -buildvcs=false -o $@ ./cmd/profile

.PHONY: $(BIN)/imagebuild
$(BIN)/imagebuild:
	@$(STEP) "building $@" go -C cmd/imagebuild build -buildvcs=false -o $(CURDIR)/$@ .

PAGE := internal/flamepage

.PHONY: page
page: page-bundle ## Bundle the flame graph page's script from npm packages into internal/flamepage/dist
	@cp $(BUILD)/page/dist/* $(PAGE)/dist/

.PHONY: page-bundle
page-bundle:
	@.ci/packages nodejs npm
	@mkdir -p $(BUILD)/page
	@cp -R $(PAGE)/web/. $(BUILD)/page/
	@$(STEP) "bundling the flame graph page" sh -c 'cd $(BUILD)/page && npm ci --ignore-scripts --no-audit --no-fund && node build.mjs dist'

.PHONY: collector
collector: ## Build the OpenTelemetry Collector that the tests send to
	@$(STEP) "building $(BIN)/collector (a few minutes the first time)" \
		go -C test/collector build -buildvcs=false -o $(CURDIR)/$(BIN)/collector .

##@ Test

.PHONY: test
test: test-unit test-e2e ## Run the unit tests, and each gadget once on the real kernel into the real Collector (root)

# These are all tests that this machine can run: the stages in .ci/stages, then most of the tests that CI leaves out.
.PHONY: test-all
test-all: ## Run all other tests of correctness, also those that CI leaves out, for hours (root)
	@$(MAKE) --keep-going test-gadgets test-memory test-locks test-hostile test-matrix test-profile test-hub test-delivery test-symbols test-docs test-page \
		test-vm test-k8s test-embed test-loads test-walk test-entries test-ig-gadgets test-names test-languages test-watching test-scale test-soak test-packages test-release test-kernels \
		test-arm64 test-backends

# Of the packages that link Inspektor Gadget, this only has the operator's tests.
.PHONY: test-fast
test-fast: ## Run the unit tests of the packages, without the slow ones, in under a minute
	go test -short ./pkg/... ./internal/... ./operators/... ./cmd/profile

.PHONY: test-unit
test-unit: ## Run the unit tests
	go test ./...
	go -C cmd/unwinder test ./...
	go -C cmd/imagebuild test ./...

# These are the packages of pkg and internal with goroutines or locks.
RACE = $(sort $(dir $(shell git grep -lE '"sync"|"sync/atomic"|go func|[.]Go.func' -- 'pkg/*.go' 'internal/*.go')))

.PHONY: test-race
test-race: ## Run the unit tests of packages with goroutines or locks with the race detector, without the slow ones
	@.ci/packages $(C_PACKAGES)
	CGO_ENABLED=1 CC=clang go test -race -short $(RACE:%=./%)

# Tests with the build tag e2e find the built programs and gadgets by these variables. The tests mostly wait, so more tests run
# at a time than there are CPUs.
E2E = E2E_BIN=$(CURDIR)/$(BIN) E2E_GADGETS=$(CURDIR)/$(BUILD)/gadgets go test -tags e2e -count=1 -v -timeout 20m -parallel 4

.PHONY: test-e2e
test-e2e: build gadgets collector ## Run each gadget once on programs with known profiles, and send to a real Collector (root)
	@.ci/packages $(C_PACKAGES) gcc linux-libc-dev python3
	$(E2E) ./test/e2e

.PHONY: test-profile
test-profile: build gadgets $(BIN)/profile ## Profile programs of known shares with the command profile (root)
	@.ci/packages $(C_PACKAGES) gcc python3
	$(E2E) ./test/profile

.PHONY: test-walk
test-walk: build gadgets $(BIN)/profile ## Ask services in five languages the five questions with the command profile, and write docs/develop/testing/walk.md (root)
	@.ci/packages chromium default-jdk-headless g++ libc6-dev nodejs python3
	WALK_DOC=$(CURDIR)/docs/develop/testing/walk.md $(E2E) ./test/walk

.PHONY: check-figures
check-figures: build gadgets $(BIN)/profile ## Count how often profile check finds slower functions, in CHECK_PAIRS=20 rounds of runs (root)
	CHECK_PAIRS=$(or $(CHECK_PAIRS),20) $(subst 20m,90m,$(E2E)) -run TestFigures ./test/profile

.PHONY: test-loads
test-loads: ## Build and run the programs with known profiles
	@.ci/packages $(LOAD_PACKAGES)
	$(E2E) ./test/loads/...

# This is the eBPF profiler's own agent. A test compares profile_cpu with it.
$(BIN)/ebpf-profiler: test/agent/go.mod
	@$(STEP) "building $@" go -C test/agent build -buildvcs=false -ldflags "-s -w" -o $(CURDIR)/$@ go.opentelemetry.io/ebpf-profiler

.PHONY: test-languages
test-languages: build gadgets ## Profile programs in a dozen languages, and hostile programs, and compare with their known profiles (root)
	@.ci/packages $(LOAD_PACKAGES) $(APART_PACKAGES)
	POLYGLOT_DOC=$(CURDIR)/docs/develop/testing/languages.md $(subst 20m,40m,$(E2E)) ./test/polyglot/... -skip TestAgent

.PHONY: test-agent
test-agent: build gadgets $(BIN)/ebpf-profiler ## Measure profile_cpu and the eBPF profiler's own agent side by side (root)
	@.ci/packages $(LOAD_PACKAGES)
	POLYGLOT_DOC=$(CURDIR)/docs/develop/testing/languages.md $(E2E) ./test/polyglot/... -run TestAgent

.PHONY: soak-languages
soak-languages: build gadgets ## Run short-lived processes for SOAK (1h) under profile_cpu, then kill its unwinder ten times (root)
	@.ci/packages $(LOAD_PACKAGES)
	$(subst 20m,24h,$(E2E)) ./test/polyglot/... -run 'TestSoak|TestKills' -soak $(or $(SOAK),1h) -kills 10 -kill-every 65s

.PHONY: test-delivery
test-delivery: collector ## Stop, freeze and restart a real Collector while rows arrive
	$(E2E) ./test/delivery/...

.PHONY: test-hub
test-hub: collector ## Send through a real Collector with processors
	$(E2E) ./test/hub/...

.PHONY: test-symbols
test-symbols: build ## Compare names of functions in programs and libraries with those of other tools (root)
	@.ci/packages $(SYMBOL_PACKAGES)
	$(E2E) ./test/symbols/...

.PHONY: test-names
test-names: build gadgets ## Profile programs of many kinds and compare the names of their frames with nm (root)
	@.ci/packages $(LOAD_PACKAGES)
	NAMES_DOC=$(CURDIR)/docs/develop/testing/names.md $(E2E) ./test/names/...

.PHONY: test-gadgets
test-gadgets: build gadgets ## Run every gadget with a stack on the real kernel (root)
	@.ci/packages $(C_PACKAGES) gcc python3
	$(E2E) ./test/gadgets/... -skip TestEntriesPerCPU

# On a busy machine, ig reads rows late. That alone would fill the stack maps.
.PHONY: test-entries
test-entries: build gadgets ## Fill the gadgets' stack maps like a machine with 256 CPUs (root, a quiet machine)
	@.ci/packages $(C_PACKAGES)
	$(E2E) ./test/gadgets/... -run TestEntriesPerCPU

.PHONY: test-ig-gadgets
test-ig-gadgets: build ebpf-tools ## Run Inspektor Gadget's own gadgets on programs in three languages, and write docs/develop/testing/inspektor-gadgets.md (root)
	@.ci/packages $(C_PACKAGES) gcc python3
	IG_GADGETS_DOC=$(CURDIR)/docs/develop/testing/inspektor-gadgets.md $(E2E) ./test/gadgets/... -run TestInspektorGadgets
	VM=$(CURDIR)/$(BUILD)/ig-gadgets-vm SUITE=bookworm RUN='TestInspektorGadgets$$' PAGE=$(CURDIR)/docs/develop/testing/inspektor-gadgets.md test/gadgets/vm.sh

# These Debian packages are for programs that count their allocations, and for their allocators.
MEMORY_PACKAGES := g++ gcc libc6-dev libjemalloc2 libtcmalloc-minimal4 musl-tools php-cli ruby rustc
.PHONY: test-memory
test-memory: build gadgets ## Profile programs that count their own allocations (root)
	@.ci/packages $(MEMORY_PACKAGES)
	$(E2E) ./test/memory/...

.PHONY: cost-memory
cost-memory: build gadgets ## Measure the cost of profile_alloc and of other tools, and write it into docs/develop/testing/allocations.md (root)
	@.ci/packages $(MEMORY_PACKAGES) apache2-utils google-perftools heaptrack nginx-light sqlite3
	$(subst 20m,60m,$(E2E)) ./test/memory -run TestCost -cost

.PHONY: cost-memory-vm
cost-memory-vm: build gadgets ## Measure profile_alloc beside Inspektor Gadget's trace_malloc in a virtual machine, and write it into docs/develop/testing/allocations.md (root)
	@TESTS=memory RUN=TestCostVM SMP=1 ICOUNT=shift=0,sleep=off PAGE=$(CURDIR)/docs/develop/testing/allocations.md VM=$(CURDIR)/$(BUILD)/cost-vm test/gadgets/vm.sh

.PHONY: test-locks
test-locks: build gadgets ## Compare waits for locks with a program's own measurement (root)
	@.ci/packages gcc libc6-dev linux-libc-dev
	$(E2E) ./test/locks/...

.PHONY: test-hostile
test-hostile: build gadgets ## Run an unprivileged user's programs that attack the profiler, all at once for DURATION (root)
	@.ci/packages binutils gcc libc6-dev linux-libc-dev
	HOSTILE_DURATION=$(DURATION) $(E2E) ./test/hostile/...

.PHONY: test-kernels
test-kernels: build gadgets ## Run the gadgets on the kernels of Debian 12 and 13, in a virtual machine (root)
	@for suite in bookworm trixie; do SUITE=$$suite VM=$(CURDIR)/$(BUILD)/kernels-$$suite RUN='TestEveryUser|TestOffCPULimits|TestWhyThreadsWait' test/gadgets/vm.sh || exit 1; done
	@APPEND=preempt=full SUITE=bookworm VM=$(CURDIR)/$(BUILD)/kernels-preempt TESTS=polyglot RUN=TestOneCPU test/gadgets/vm.sh

.PHONY: test-matrix
test-matrix: build gadgets ## Check every gadget under every preset by every receiver's rules (root)
	@.ci/packages $(C_PACKAGES)
	$(E2E) ./test/matrix/...

.PHONY: test-embed
test-embed: build gadgets collector ## Build the example of embedding and let it send to a Collector (root)
	@$(STEP) "building $(BIN)/embed (a few minutes the first time)" go -C test/embed build -buildvcs=false -o $(CURDIR)/$(BIN)/embed .
	$(E2E) -run 'TestCommands/docs/develop/embedding' ./test/docs/...

.PHONY: test-docs
test-docs: build gadgets collector $(BIN)/profile ## Run every shell command of the documentation unchanged (root)
	@.ci/packages gcc libc6-dev python3 curl procps
	$(E2E) ./test/docs/...

.PHONY: test-history-cost
test-history-cost: build gadgets pyroscope ## Measure the cost of a history of 16 busy CPUs for a day, and compare with Pyroscope and with no exporter (10 minutes when built; root)
	go test -count=1 -v -timeout 2h -run TestCost ./pkg/export/history -args -cost
	$(E2E) -run TestHistoryBeside ./test/backends -history

.PHONY: test-page
test-page: page-bundle ## Test the flame graph page in headless Chromium, and that its bundle is current
	@.ci/packages chromium
	@diff -r $(BUILD)/page/dist $(PAGE)/dist || { echo "run make page and commit the result"; exit 1; }
	PAGE_MODULES=$(CURDIR)/$(BUILD)/page PAGE_SHOTS=$(CURDIR)/$(BUILD)/page/shots go test -tags e2e -count=1 -v ./test/page

# These are servers of backends, built from their Go modules as separate programs. No program of this project imports Pyroscope,
# because it is under the AGPL.
.PHONY: pyroscope parca
pyroscope: ## Build the Pyroscope that the tests send to (11 CPU minutes)
	@$(STEP) "building $(BIN)/pyroscope (many minutes the first time)" \
		go -C test/backends/pyroscope build -buildvcs=false -tags netgo -o $(CURDIR)/$(BIN)/pyroscope github.com/grafana/pyroscope/cmd/pyroscope
	@go -C test/backends/pyroscope build -buildvcs=false -o $(CURDIR)/$(BIN)/lidia ./lidia

parca: ## Build the Parca that the tests send to (15 CPU minutes)
	@$(STEP) "building $(BIN)/parca (many minutes the first time)" test/backends/parca/build.sh $(BIN)/parca

.PHONY: test-backends
test-backends: build gadgets collector pyroscope parca ## Send to real backends and check their data; with WRITE=1 write the results into docs/develop/testing/backends.md (root)
	@.ci/packages $(C_PACKAGES) lld default-jdk-headless nodejs python3
	$(E2E) ./test/backends $(if $(WRITE),-page)

.PHONY: test-parca
test-parca: build gadgets collector parca ## Run the part of test-backends that only needs Parca (root)
	@.ci/packages $(C_PACKAGES) lld
	BACKENDS=parca $(E2E) ./test/backends

# Prometheus and promtool check alerts and the dashboard.
$(BIN)/prometheus $(BIN)/promtool: $(BIN)/%: test/watching/prometheus/go.mod
	@$(STEP) "building $@ (many minutes the first time)" \
		go -C test/watching/prometheus build -buildvcs=false -ldflags "-s -w" -o $(CURDIR)/$@ github.com/prometheus/prometheus/cmd/$*

.PHONY: test-watching
test-watching: build gadgets collector $(BIN)/prometheus $(BIN)/promtool ## Run alerts and dashboard on a real Prometheus with the metrics of real gadgets (root)
	@.ci/packages gcc libc6-dev python3
	$(E2E) ./test/watching/...

.PHONY: test-scale
test-scale: collector ## Send from a thousand simulated nodes to one Collector
	$(E2E) ./test/scale/... -out $(CURDIR)/$(BUILD)/scale.md

.PHONY: test-soak
test-soak: ## Run short-lived containers and stacks for SOAK (1m): nothing may grow
	go test -tags e2e -count=1 -v -timeout 24h ./test/soak -soak $(or $(SOAK),1m)

.PHONY: bench
bench: ## Measure against Inspektor Gadget's own operator
	@test/bench/run.sh

.PHONY: test-k8s
test-k8s: build gadgets collector ## Test in a one-node Kubernetes on this machine; with SOAK=1h soak there instead (root)
	@test/k8s/run.sh

# This list omits steps that install, upgrade or remove daemons. It also omits steps that repeat guide.
K8S_GADGETS := verification|identity|outage|clients|restart|stacks|leak|short|guide|trust
# Kubernetes and the other programs have as many Go packages as ig and the Collector together. This does not build ig, the
# Collector or gadgets, because other targets use them at the same time.
.PHONY: ahead
ahead: $(BIN)/golangci-lint-$(GOLANGCI_VERSION) ## Build what lint and test-k8s-gadgets need, after make build gadgets collector (root)
	@RUN='$(K8S_GADGETS)' test/k8s/run.sh build

.PHONY: test-k8s-gadgets
test-k8s-gadgets: build gadgets collector ## Run the part of test-k8s that CI has time for (root)
	@RUN='$(K8S_GADGETS)' test/k8s/run.sh

.PHONY: test-vm
test-vm: build gadgets $(BIN)/profile $(if $(filter malloc,$(RUN)),ebpf-tools) ## Test with real containers in a virtual machine; with RUN=languages test whole stacks there instead, with RUN=malloc trace_malloc (root)
	$(if $(filter malloc,$(RUN)),@.ci/ig-gadgets $(BIN)/ig $(BUILD)/ig-gadgets trace_malloc)
	@POLYGLOT_DOC=$(CURDIR)/docs/develop/testing/languages.md test/vm/run.sh

.PHONY: test-arm64
test-arm64: build gadgets ## Start ig, the unwinder and three gadgets on arm64, in a virtual machine (root)
	@LDFLAGS="$(LDFLAGS)" test/vm/arm64.sh

.PHONY: test-release
test-release: release ## Check a release's files: checksums, archives, packages and SBOMs, and that its programs run
	@.ci/packages rpm dpkg
	RELEASE=$(CURDIR)/$(BUILD)/release RELEASE_VERSION='$(PACKAGE_VERSION)' go test -tags e2e -count=1 -v ./test/release

# REPOSITORY is the place of a release's images, such as ghcr.io/ig-otel-profiles.
.PHONY: publish
publish: test-release $(BIN)/imagebuild ## Sign the images of the tag GADGET_TAG, publish them at REPOSITORY, and write the release's page into build/publish
	@cmd/ig/package/publish.sh $(BUILD) $(GADGET_TAG) $(REPOSITORY)

.PHONY: test-publish
test-publish: ## Make a release from a tag of a clone, into a registry on this machine, and verify the result (root)
	@test/release/publish.sh

.PHONY: test-packages
test-packages: packages ## Install, start, upgrade and remove the deb in a Debian with systemd, in a virtual machine; compare the rpm (root)
	@test/host/run.sh

##@ Keep in shape

.PHONY: fmt
fmt: ## Format the Go files
	@gofmt -l -w $$(git ls-files '*.go')

.PHONY: fmt-check
fmt-check: ## Fail if a Go file is not formatted
	@files=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$files" ] || { echo "make fmt would change:"; echo "$$files"; exit 1; }

.PHONY: vet
vet: ## Run go vet on every module (make lint does so, too)
	@set -e; for dir in $(LINTED); do echo "go vet in $$dir"; go -C $$dir vet -tags e2e ./...; done

.PHONY: lint
lint: $(BIN)/golangci-lint-$(GOLANGCI_VERSION) ## Run the linters on every module
	@set -e; for dir in $(LINTED); do (cd $$dir && $(CURDIR)/$(STEP) "running golangci-lint in $$dir" $(CURDIR)/$< run --allow-parallel-runners --build-tags e2e ./...); done

$(BIN)/golangci-lint-$(GOLANGCI_VERSION):
	@mkdir -p $(BIN)/tools
	@GOBIN=$(CURDIR)/$(BIN)/tools $(STEP) "building golangci-lint $(GOLANGCI_VERSION) (a few minutes, once)" \
		go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	@mv $(BIN)/tools/golangci-lint $@

.PHONY: clean
clean: ## Remove all build results
	rm -rf $(BUILD)
