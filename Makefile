# One entry for everything. `make demo` and `make test` start from nothing on Debian/Ubuntu with Python >= 3.11 and a C
# compiler; whatever else is needed is installed into .venv. Only the cluster layer needs root, and is skipped without.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BUILD ?= build
JOBS ?= $(shell nproc)
CMAKE := $(BIN)/cmake -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DPython3_EXECUTABLE=$(CURDIR)/$(BIN)/python \
	-DPARTAGE_HEADERS=$(CURDIR)/build/headers
SOAK ?= full
WERROR ?=
COMPILERS ?= gcc clang

.PHONY: help build demo test test-c test-python clients test-clients cluster-setup test-cluster cluster cluster-down test-gpu test-wheel sanitizers compilers soak bench bench-smoke docs \
	manifests picture lint format clean

help:
	@echo "make demo           two programs share a simulated 80 GB card; needs no GPU"
	@echo "make test           every layer of tests that this machine can run; says what was skipped and why"
	@echo "  test-c, test-python, test-clients, test-cluster, test-gpu: one layer; test-wheel: an installed wheel works without the checkout"
	@echo "make build          .venv/bin/partage, build/lib/libvgpu.so, build/sim/{libcuda,libnvidia-ml}.so.1"
	@echo "make cluster        a real Kubernetes with one node, left running; make cluster-down ends it"
	@echo "make soak           kills, mutated files, crowds of processes and of pods (SOAK=ci: the small counts)"
	@echo "make bench          what a call costs, what shares are kept: hours, goes on where it was stopped (bench-smoke: minutes)"
	@echo "make sanitizers     C tests under ASan+UBSan, then TSan; compilers: gcc and clang, warnings are errors"
	@echo "make lint | format  check, or repair what a program can repair; docs: write the generated pages again"
	@echo "make manifests      deploy/*/*.yaml and the schema of values, from the chart"
	@echo "make clean          remove everything that was built or installed here"

# ---- set-up ---------------------------------------------------------------------------------------------------------------
# $(call install,GROUP...): the distribution's own requirements and those of the named groups of pyproject.toml
define install
@echo "installing into $(VENV): $(1)"
@$(BIN)/python tools/dependencies.py $(1) > $@.txt
@$(BIN)/python -m pip install -q --disable-pip-version-check -r $@.txt
@touch $@
endef

$(VENV)/.base: pyproject.toml tools/dependencies.py
	@tools/require $(PYTHON)
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(call install,build)

$(VENV)/.demo: $(VENV)/.base
	$(call install,demo)

$(VENV)/.test: $(VENV)/.base
	$(call install,agent control test)

$(VENV)/.clients: $(VENV)/.base
	$(call install,demo agent test clients)

$(VENV)/.cluster: $(VENV)/.base
	$(call install,demo agent control test cluster)

$(VENV)/.bench: $(VENV)/.base
	$(call install,agent control test bench)

$(VENV)/.lint: $(VENV)/.base
	$(call install,agent control lint test cluster)

# ---- build ------------------------------------------------------------------------------------------------------------------
# $(call compile,TARGET...): all targets where none is named; WERROR=ON makes warnings errors
define compile
@$(BIN)/python hook/gen/headers.py build/headers
@test -f $(BUILD)/build.ninja -a -z "$(WERROR)" || $(CMAKE) -S . -B $(BUILD) $(WERROR:%=-DPARTAGE_WERROR=%) > $(BUILD)-configure.log 2>&1 || { cat $(BUILD)-configure.log; exit 1; }
@rm -f $(BUILD)-configure.log
@$(BIN)/cmake --build $(BUILD) -j $(JOBS) $(addprefix --target ,$(1)) -- --quiet
@tools/link-python $(VENV) $(BUILD)
endef

build: $(VENV)/.base
	$(call compile)

demo: $(VENV)/.demo
	$(call compile,vgpu cuda_sim nvml_sim partage-arbiter abi)
	$(BIN)/partage demo

# ---- tests --------------------------------------------------------------------------------------------------------------------
test: build clients cluster-setup
	@$(BIN)/python tools/layers.py $(BUILD) c python clients cluster control gpu

test-c: build
	@$(BIN)/python tools/layers.py $(BUILD) c

test-python: build $(VENV)/.clients
	@$(BIN)/python tools/layers.py $(BUILD) python

test-gpu: build $(VENV)/.test
	@$(BIN)/python tools/layers.py $(BUILD) gpu

# What pip alone does not bring; says what it had to leave out
clients: build $(VENV)/.clients
	@$(BIN)/python tools/clients.py $(BUILD)

test-clients: clients
	@$(BIN)/python tools/layers.py $(BUILD) clients

# Kubernetes, etcd and containerd, built once from their published modules; says what it could not have
cluster-setup: $(VENV)/.cluster
	@$(BIN)/python -m tests.cluster prepare

test-cluster: build cluster-setup
	@$(BIN)/python tools/layers.py $(BUILD) cluster control

cluster: build cluster-setup
	@$(BIN)/python -m tests.cluster up

cluster-down:
	@$(BIN)/python -m tests.cluster down

test-wheel: build $(VENV)/.test
	tests/wheel/run $(CURDIR)/$(BIN)/python

# C tests under ASan+UBSan, then TSan
sanitizers: $(VENV)/.base
	@for kind in address thread; do \
		$(CMAKE) -S . -B build-$$kind -DPARTAGE_SANITIZE=$$kind -DPARTAGE_PYTHON=OFF > /dev/null && \
		$(BIN)/cmake --build build-$$kind -j $(JOBS) -- --quiet && \
		( cd build-$$kind && $(CURDIR)/$(BIN)/ctest --output-on-failure -j $(JOBS) ) || exit 1; done

# Both compilers, every warning an error (COMPILERS=clang: that one alone)
compilers: $(VENV)/.base
	@for compiler in $(COMPILERS); do \
		$(CMAKE) -S . -B build-$$compiler -DCMAKE_C_COMPILER=$$compiler -DPARTAGE_WERROR=ON -DPARTAGE_PYTHON=OFF > /dev/null && \
		$(BIN)/cmake --build build-$$compiler -j $(JOBS) -- --quiet || exit 1; done

soak: build $(VENV)/.clients cluster-setup
	@PARTAGE_SOAK=$(SOAK) $(BIN)/python tools/layers.py $(BUILD) soak rounds

bench: build $(VENV)/.bench cluster-setup
	@mkdir -p $(BUILD)/reports
	$(BIN)/python bench/calls.py --json $(BUILD)/reports/calls.json
	$(BIN)/python bench/scrape.py --json $(BUILD)/reports/scrape.json
	$(BIN)/python bench/webhook.py
	$(BIN)/python bench/shares.py --resume $(BUILD)/reports/shares.jsonl
	$(BIN)/python bench/virtbench.py --calls $(BUILD)/reports/calls.json --resume $(BUILD)/reports/shares.jsonl \
		--json $(BUILD)/reports/virtbench.json
	$(BIN)/python bench/shares.py --plot $(BUILD)/reports/shares.png
	$(BIN)/python bench/node.py --idle 600 --json $(BUILD)/reports/node.json
	$(BIN)/python bench/scheduler.py

bench-smoke: build $(VENV)/.test cluster-setup
	$(BIN)/python bench/calls.py --smoke --check
	$(BIN)/python bench/scrape.py --smoke --check
	$(BIN)/python bench/shares.py --smoke --check
	$(BIN)/python bench/node.py --smoke --check
	$(BIN)/python bench/scheduler.py --smoke --check

# ---- documents ------------------------------------------------------------------------------------------------------------------
docs: build $(VENV)/.test
	$(BIN)/python tools/reference.py

picture: build $(VENV)/.demo
	$(BIN)/python tools/picture.py docs

# The plain manifests below deploy/ and the schema of values, from the chart
manifests: $(VENV)/.test
	$(BIN)/python tools/chart.py

# ---- lint -----------------------------------------------------------------------------------------------------------------------
lint: build $(VENV)/.lint
	tools/lint $(BIN) $(BUILD)

format: $(VENV)/.lint
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	git ls-files '*.c' '*.h' | xargs $(BIN)/clang-format -i

clean:
	rm -rf build build-address build-thread build-gcc build-clang .venv dist python/*.egg-info python/partage/_abi*.so
