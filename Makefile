# One entry for everything. `make demo` and `make test` start from nothing on Debian/Ubuntu with Python >= 3.11 and a C
# compiler; whatever else is needed is installed into .venv, and no step needs root.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
BUILD ?= build
JOBS ?= $(shell nproc)
CMAKE := $(BIN)/cmake -G Ninja -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(BIN)/ninja -DPython3_EXECUTABLE=$(CURDIR)/$(BIN)/python \
	-DPARTAGE_HEADERS=$(CURDIR)/build/headers
SOAK ?= full

.PHONY: build demo test test-c test-python test-clients test-wheel sanitizers compilers soak bench bench-smoke lint format clean help

help:
	@echo "make build | demo | test | test-c | test-python | test-clients | test-wheel | sanitizers | soak | bench | lint | format | clean"

# ---- set-up ---------------------------------------------------------------------------------------------------------------
$(VENV)/.base: pyproject.toml tools/dependencies.py
	@tools/require $(PYTHON)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python tools/dependencies.py build > $(VENV)/base.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -r $(VENV)/base.txt
	@touch $@

$(VENV)/.demo: $(VENV)/.base
	$(BIN)/python tools/dependencies.py demo > $(VENV)/demo.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -r $(VENV)/demo.txt
	@touch $@

$(VENV)/.test: $(VENV)/.base
	$(BIN)/python tools/dependencies.py test > $(VENV)/test.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -r $(VENV)/test.txt
	@touch $@

$(VENV)/.clients: $(VENV)/.base
	$(BIN)/python tools/dependencies.py demo test clients > $(VENV)/clients.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -r $(VENV)/clients.txt
	@touch $@

$(VENV)/.lint: $(VENV)/.base
	$(BIN)/python tools/dependencies.py lint test > $(VENV)/lint.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -r $(VENV)/lint.txt
	@touch $@

# ---- build ------------------------------------------------------------------------------------------------------------------
build: $(VENV)/.base
	@$(BIN)/python hook/gen/headers.py build/headers
	@test -f $(BUILD)/build.ninja || $(CMAKE) -S . -B $(BUILD) > $(BUILD)-configure.log 2>&1 || { cat $(BUILD)-configure.log; exit 1; }
	@rm -f $(BUILD)-configure.log
	@$(BIN)/cmake --build $(BUILD) -j $(JOBS) -- --quiet
	@tools/link-python $(VENV) $(BUILD)

demo: build $(VENV)/.demo
	$(BIN)/partage demo

# ---- tests --------------------------------------------------------------------------------------------------------------------
test: test-c test-python test-clients
	@echo; echo "make test: C, Python and client layers passed. Cluster and gpu layers: not part of this version (no agent yet)."

test-c: build
	cd $(BUILD) && $(CURDIR)/$(BIN)/ctest --output-on-failure -j $(JOBS)

test-python: build $(VENV)/.clients
	$(BIN)/python -m pytest tests

test-clients: build $(VENV)/.clients
	$(BIN)/python -m pytest tests/clients

test-wheel: build $(VENV)/.test
	tests/wheel/run $(CURDIR)/$(BIN)/python

# C tests under ASan+UBSan, then TSan
sanitizers: $(VENV)/.base
	@for kind in address thread; do \
		$(CMAKE) -S . -B build-$$kind -DPARTAGE_SANITIZE=$$kind -DPARTAGE_PYTHON=OFF > /dev/null && \
		$(BIN)/cmake --build build-$$kind -j $(JOBS) -- --quiet && \
		( cd build-$$kind && $(CURDIR)/$(BIN)/ctest --output-on-failure -j $(JOBS) ) || exit 1; done

# Both compilers, every warning an error
compilers: $(VENV)/.base
	@for compiler in gcc clang; do \
		$(CMAKE) -S . -B build-$$compiler -DCMAKE_C_COMPILER=$$compiler -DPARTAGE_WERROR=ON -DPARTAGE_PYTHON=OFF > /dev/null && \
		$(BIN)/cmake --build build-$$compiler -j $(JOBS) -- --quiet || exit 1; done

soak: build $(VENV)/.clients
	PARTAGE_SOAK=$(SOAK) $(BIN)/python -m pytest tests/soak -s

bench: build $(VENV)/.test
	$(BIN)/python bench/calls.py

bench-smoke: build $(VENV)/.test
	$(BIN)/python bench/calls.py --smoke --check

# ---- lint -----------------------------------------------------------------------------------------------------------------------
lint: build $(VENV)/.lint
	tools/lint $(BIN) $(BUILD)

format: $(VENV)/.lint
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	git ls-files '*.c' '*.h' | xargs $(BIN)/clang-format -i

clean:
	rm -rf build build-address build-thread build-gcc build-clang .venv dist python/*.egg-info python/partage/_abi*.so
