# Everything that is done with this code has a target here; `make` alone lists them.
# Needs GNU make, Go as go.mod says, and a C compiler; each target says what else it needs.

.DEFAULT_GOAL := help
SHELL := bash

# The Go that is installed, and no download of another one in the middle of a build.
export GOTOOLCHAIN := local

# Without a C compiler Go would quietly build the slow reference kernels, so cgo is asked for by name.
CGO_ENABLED ?= 1
export CGO_ENABLED
ifeq ($(origin CC),default)
CC := $(firstword $(foreach c,gcc clang cc,$(if $(shell command -v $(c)),$(c))))
endif
export CC

# go-nvml calls functions that NVIDIA has deprecated, a screenful of them, which is not for whoever builds this.
export CGO_CFLAGS ?= -g -O2 -Wno-deprecated-declarations

ARGS ?=
DEVICE ?=
SCENARIO ?= $(filter-out short,$(basename $(notdir $(sort $(wildcard bench/scenarios/*.yaml)))))
GO_TEST ?= go test
FUZZTIME ?= 10s
KERNELS ?=
MUTANTS ?= all
TOOLS := .cache/tools

# Packages whose tests are quick on the Go reference kernels.
NOCGO := config cpu cuda/kernels cuda/sim/ptx data device doctor internal model record safetensors

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo '  ARGS="..." is passed on by train and bench, SCENARIO="scaling startup" is what bench runs,'
	@echo '  FUZZTIME=10s bounds each fuzz target, KERNELS="norm rope" is what kernels compiles, and mutate'
	@echo '  changes, MUTANTS=60 how many mutants it tries.'

# ---- building and running

.PHONY: build
build: need-go need-cc ## Build bin/gofsdp
	@mkdir -p bin
	go build -buildvcs=auto -o bin/ ./cmd/gofsdp

.PHONY: train
ifeq ($(DEVICE),sim)
train: build-sim
	bin/gofsdp-sim train cmd/gofsdp/testdata/sim/run.yaml $(ARGS)
else
train: build ## Train a small model on Go's standard library, in two minutes; DEVICE=sim: a smaller one, for three steps on simulated GPUs
	bin/gofsdp train quickstart $(if $(DEVICE),--set scaling.device=$(DEVICE)) $(ARGS)
endif

.PHONY: build-sim
build-sim: need-go need-cc ## Build bin/gofsdp-sim, which has simulated GPUs, for tests
	@mkdir -p bin
	go build -buildvcs=auto -tags sim -o bin/gofsdp-sim ./cmd/gofsdp

SCENARIO_FILES = $(SCENARIO:%=bench/scenarios/%.yaml)

.PHONY: bench
bench: build $(if $(shell grep -ls 'python' $(SCENARIO_FILES)),.venv/peers/ready) ## Compare gofsdp with its peers and with itself, as SCENARIO says (all: up to 100 minutes), and draw the results
	bin/gofsdp bench run $(SCENARIO_FILES) $(ARGS)
	bin/gofsdp bench report

.PHONY: bench-short
bench-short: build ## Show in a minute that everything can be measured, without peers
	bin/gofsdp bench operations --short
	bin/gofsdp bench collectives --short
	bin/gofsdp bench ranks --short
	bin/gofsdp bench run bench/scenarios/short.yaml --out .cache/bench

.PHONY: bench-peers
bench-peers: .venv/peers/ready ## Install PyTorch and Ray to be compared with, and hold the peers against plain training (network, Python, 7 GB)
	.venv/peers/bin/python bench/peers/check.py

# ---- the kernels

.PHONY: kernels
kernels: .venv/kernels/ready ## Compile the CUDA kernels to the PTX that is committed (network once, Python; no GPU)
	.venv/kernels/bin/python tools/kernels/compile.py cuda/kernels $(KERNELS)

.PHONY: kernels-check
kernels-check: need-go .venv/kernels/ready ## Hold the committed PTX against its sources and against what ptxas makes of it
	.venv/kernels/bin/python tools/kernels/compile.py --check cuda/kernels
	GOFSDP_PTXAS="$$(echo $(CURDIR)/.venv/kernels/lib/python*/site-packages/nvidia/cuda_nvcc/bin/ptxas)" \
		$(GO_TEST) -count=1 -run 'Ptxas' ./cuda/kernels

.PHONY: mutate
mutate: need-go ## Plant mistakes in the kernels' PTX, one at a time, and see whether the tests find them (25 minutes on two cores)
	GOFSDP_MUTANTS=$(MUTANTS) GOFSDP_MUTANTS_OF="$(KERNELS)" \
		$(GO_TEST) -count=1 -timeout 0 -v -run 'Mutants' ./cuda/kernels

# ---- testing

.PHONY: test
test: need-go need-cc ## Run all tests (Go and a C compiler, under five minutes)
	$(GO_TEST) ./...

.PHONY: race
race: need-go need-cc ## Run all tests under the race detector (slow)
	$(GO_TEST) -race -timeout 30m ./...

.PHONY: test-nocgo
test-nocgo: need-go ## Run the tests of the Go reference kernels, as without a C compiler
	CGO_ENABLED=0 $(GO_TEST) $(foreach p,$(NOCGO),$(if $(wildcard $(p)),./$(p)/...))

.PHONY: test-sim
test-sim: need-go need-cc ## Run the GPU's device on a simulated driver, which executes its kernels
	$(GO_TEST) -tags sim ./cuda ./cuda/sim ./cuda/sim/calls ./nccl ./gpucheck
	$(GO_TEST) -tags sim -run 'GPU' ./bench
	$(GO_TEST) -tags sim -run 'GPU' ./fsdp
	$(GO_TEST) -tags sim -run 'Simulated' ./cmd/gofsdp

# What the witness is compiled and linked with: cuda.h of NVIDIA's wheel, and a libcuda.a of our own.
WITNESS := $(CURDIR)/.cache/witness
WITNESS_HEADERS = $$(echo $(CURDIR)/.venv/witness/lib/python*/site-packages/nvidia/cuda_runtime/include)
in-witness = cd cuda/witness && CGO_CFLAGS="-g -O2 -w -I$(WITNESS_HEADERS)" CGO_LDFLAGS="-L$(WITNESS)"

.PHONY: witness
witness: need-go need-cc .cache/witness/libcuda.a ## Let another binding of the driver tell of the simulated GPU what ours does (network once, Python)
	$(in-witness) go vet -tags cu,sim ./...
	$(in-witness) $(GO_TEST) -tags cu,sim ./...

.PHONY: witness-binary
witness-binary: need-go need-cc .cache/witness/libcuda.a ## Build bin/witness.test, which with -gpu tells of a real GPU
	@mkdir -p bin
	$(in-witness) go test -c -tags cu,sim -ldflags '-s -w' -o $(CURDIR)/bin/witness.test .

.cache/witness/libcuda.a: .venv/witness/ready cuda/witness/libcuda.sh
	sh cuda/witness/libcuda.sh "$(WITNESS_HEADERS)" $(@D)

.PHONY: e2e-image
e2e-image: build .venv/image/ready ## Find the real cuBLAS and NCCL in the AWS container's layout, each missing in turn (630 MB from the network once, Python; root or user namespaces)
	@set -e; site=$$(echo $(CURDIR)/.venv/image/lib/python*/site-packages); \
	GOFSDP_IMAGE_WHEELS="$$site" GOFSDP_IMAGE_PROGRAM=$(CURDIR)/bin/gofsdp $(GO_TEST) -count=1 -run 'Container' ./cmd/gofsdp; \
	GOFSDP_LIBNCCL="$$site/nvidia/nccl/lib/libnccl.so.2" $(GO_TEST) -count=1 -run 'TheRealNCCL' ./nccl; \
	GOFSDP_LIBCUBLAS="$$site/nvidia/cu13/lib/libcublas.so.13" $(GO_TEST) -count=1 -run 'TheRealCuBLAS' ./cuda

.PHONY: test-tokenizer
test-tokenizer: need-go ## Compare the tokenizer with Qwen's real vocabulary (network, Python, npm)
	tools/golden/tokenizer/qwen.sh .cache/qwen

.PHONY: test-huggingface
test-huggingface: need-go need-cc .venv/model/ready ## Let transformers read what is written, and the other way (network, Python, 6 GB)
	GOFSDP_PYTHON=$(CURDIR)/.venv/model/bin/python \
		$(GO_TEST) -count=1 -run 'Transformers' ./checkpoint ./model

.PHONY: fuzz
fuzz: need-go need-cc ## Fuzz every target for FUZZTIME
	tools/fuzz.sh $(FUZZTIME)

.PHONY: cross
cross: need-go ## Compile and vet for the other platforms, without C
	@set -e; for platform in linux/amd64 linux/arm64 darwin/arm64; do \
		echo "CGO_ENABLED=0 $$platform"; \
		export CGO_ENABLED=0 GOOS=$${platform%/*} GOARCH=$${platform#*/}; \
		go build ./...; go vet ./...; \
	done

# ---- on a machine with GPUs

BUNDLE := bin/gpu-check
OUT ?= runs/gpu-check

.PHONY: gpu-check
gpu-check: gpu-check-bundle ## Check this machine's GPUs in under eight minutes: one page and one JSON in OUT (a GPU)
	@# What make bench-peers has installed is taken where nothing else is named.
	$(if $(wildcard .venv/peers/ready),GOFSDP_PYTHON="$${GOFSDP_PYTHON:-$(CURDIR)/.venv/peers/bin/python}" VIRTUAL_ENV="$${VIRTUAL_ENV:-$(CURDIR)/.venv/peers}") $(BUNDLE)/run "$(OUT)" $(ARGS)

.PHONY: gpu-check-bundle
gpu-check-bundle: need-go need-cc ## Build bin/gpu-check, which checks GPUs where there is no Go, compiler or network
	@rm -rf $(BUNDLE) && mkdir -p $(BUNDLE)/bench/peers
	go build -buildvcs=auto -ldflags='-s -w' -o $(BUNDLE)/ ./cmd/gofsdp
	go test -c -ldflags='-s -w' -o $(BUNDLE)/gpucheck.test ./gpucheck
	cp bench/peers/fsdp2.py bench/peers/ranks.py bench/peers/tuned.py $(BUNDLE)/bench/peers/
	cp tools/gpucheck/run $(BUNDLE)/run
	@if $(MAKE) --no-print-directory witness-binary; then cp bin/witness.test $(BUNDLE)/; \
		else echo "the witness cannot be built here, so its part will not be run" >&2; fi
	@du -sm $(BUNDLE) | awk '{ print $$1 " MB in " $$2; if ($$1 > 60) { print "more than 60 MB" > "/dev/stderr"; exit 1 } }'

.PHONY: gpu-check-nogpu
gpu-check-nogpu: gpu-check-bundle ## Build the bundle and see it say that there is no GPU
	@CUDA_VISIBLE_DEVICES=-1 $(BUNDLE)/run .cache/gpu-check; code=$$?; \
		if [ $$code != 3 ]; then echo "exit code $$code, want 3" >&2; exit 1; fi

# ---- the code itself

.PHONY: lint
lint: need-go need-cc $(TOOLS)/built ## Check format, vet, staticcheck and dead code
	@set -e; unformatted=$$($(TOOLS)/gofumpt -l .); if [ -n "$$unformatted" ]; then \
		echo "not formatted; run make fmt:"; echo "$$unformatted"; exit 1; fi
	go vet ./...
	go vet -tags sim ./cuda/... ./nccl ./fsdp ./gpucheck ./bench ./cmd/gofsdp
	$(TOOLS)/staticcheck ./...
	$(TOOLS)/staticcheck -tags sim ./cuda/... ./nccl ./fsdp ./gpucheck ./bench ./cmd/gofsdp
	@# The simulator's functions are called from C, which deadcode does not see.
	@set -e; dead=$$($(TOOLS)/deadcode -test -tags sim ./...); \
		dead=$$(echo "$$dead" | sed '/^cuda\/sim\/[a-z_]*\.go:/d'); if [ -n "$$dead" ]; then \
		echo "nothing reaches:"; echo "$$dead"; exit 1; fi

.PHONY: fmt
fmt: need-go $(TOOLS)/built ## Format the Go code
	$(TOOLS)/gofumpt -w .

.PHONY: tools
tools: $(TOOLS)/built ## Build the development tools that tools/go.mod pins

# Host settings only: a cross build must not cross-build its tools.
$(TOOLS)/built: tools/go.mod tools/go.sum
	@$(MAKE) --no-print-directory need-go
	@mkdir -p $(TOOLS)
	cd tools && GOOS= GOARCH= CGO_ENABLED=0 go build -o ../$(TOOLS)/ tool
	@touch $@

.PHONY: golden
golden: .venv/model/ready .venv/tokenizer/ready ## Make the golden data again with the pinned Python libraries (network, Python, 6 GB)
	.venv/model/bin/python tools/golden/model/make.py model/testdata/golden
	.venv/model/bin/python tools/golden/fsdp2/make.py fsdp/testdata/fsdp2
	.venv/model/bin/python tools/golden/huggingface/make.py checkpoint/testdata/transformers
	.venv/tokenizer/bin/python tools/golden/tokenizer/make.py

define venv
	@command -v python3 >/dev/null || { echo "python3 is missing; install it, e.g. apt-get install python3-venv" >&2; exit 1; }
	python3 -m venv $(@D)
	$(@D)/bin/pip install -q $(PIP_INSTALL) -r $<
	@touch $@
endef

.venv/%/ready: tools/golden/%/requirements.txt
	$(venv)

.venv/peers/ready: bench/peers/requirements.txt
	$(venv)

.venv/kernels/ready: tools/kernels/requirements.txt
	$(venv)

.venv/witness/ready: cuda/witness/requirements.txt
	$(venv)

.venv/image/ready: PIP_INSTALL := --no-deps
.venv/image/ready: tools/image/requirements.txt
	$(venv)

.PHONY: clean
clean: ## Remove what was built; runs and Go's own caches stay
	rm -rf bin .cache .venv

# ---- what has to be there

.PHONY: need-go
need-go:
	@command -v go >/dev/null || { \
		echo "Go is missing; install Go $$(awk '$$1 == "go" { print $$2 }' go.mod) or newer from https://go.dev/dl" >&2; exit 1; }
	@need=$$(awk '$$1 == "go" { print $$2 }' go.mod); have=$$(go version | awk '{ sub("go", "", $$3); print $$3 }'); \
	case $$have in [0-9]*) ;; *) exit 0 ;; esac; \
	if [ "$$(printf '%s\n' "$$need" "$$have" | sort -V | head -n 1)" != "$$need" ]; then \
		echo "Go $$have is too old; install Go $$need or newer from https://go.dev/dl" >&2; exit 1; fi

.PHONY: need-cc
need-cc:
	@if [ "$(CGO_ENABLED)" = 1 ] && ! command -v "$(firstword $(CC))" >/dev/null; then \
		echo "no C compiler$(if $(CC), ($(CC))); install gcc, e.g. apt-get install gcc libc6-dev," >&2; \
		echo "or build the slow Go reference kernels with CGO_ENABLED=0 make $(MAKECMDGOALS)" >&2; exit 1; fi
