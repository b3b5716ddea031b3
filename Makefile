# The whole interface: make demo | test | lint | accuracy | bench | clean.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JOBS ?= 2
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test lint unit bench bench-quick bench-check bench-micro accuracy accuracy-quick clean
.DEFAULT_GOAL := test

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip

$(VENV)/.core: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) -e .
	@touch $@

# torch is asked for alone and exactly, so that pip takes the CPU build the pin names.
$(VENV)/.dev: $(VENV)/.core
	$(PIP) torch==2.13.0
	$(PIP) -e '.[dev]'
	$(PIP) --no-deps magika rapidocr-onnxruntime silero-vad
	@touch $@

demo: $(VENV)/.core
	$(BIN)/quantry demo

lint: $(VENV)/.dev
	$(BIN)/ruff check src tests examples benchmarks docs
	$(BIN)/ruff format --check src tests examples benchmarks docs
	$(BIN)/mypy

unit: $(VENV)/.dev
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -q

test: lint unit

# Side by side with the peers: see benchmarks/README.md. The peer's own environment is made outside this one.
bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks.bench --publish

bench-quick: $(VENV)/.dev
	$(BIN)/python -m benchmarks.bench --quick

bench-check: $(VENV)/.dev
	$(BIN)/python -m benchmarks.bench_check

bench-micro: $(VENV)/.dev
	$(BIN)/python -m pytest benchmarks/micro -q -p no:cacheprovider --benchmark-max-time=0.3 --benchmark-min-rounds=3 --benchmark-columns=min,median,rounds

accuracy: $(VENV)/.dev
	QUANTRY_SLOW_TESTS=1 $(BIN)/python -m pytest -q tests/torch_facade/test_torch_facade_embedded.py
	$(BIN)/python -m benchmarks.accuracy --publish

accuracy-quick: $(VENV)/.dev
	$(BIN)/python -m benchmarks.accuracy --quick

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
