# make demo: train, compress, evaluate and report on embedded data.  make test: the tests.  The rest is for developers.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test slow coverage mutants portability seeds audit walk venv lint format bench docs tables clean

demo: $(VENV)/.user
	$(BIN)/pocketbayes demo

test: venv
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

slow: venv
	$(BIN)/python -m pytest -m slow

# Lines and branches; the figures go to benchmarks/results/coverage.json.
coverage: venv
	$(BIN)/python tools/measure_coverage.py -n 2

# Small mistakes planted in the numerical core, one at a time: do the tests notice?
mutants: venv
	$(BIN)/python tools/mutate.py

# The suite as other CPUs, thread counts, orders and Python versions would run it: an hour; QUICK=--quick: minutes.
portability: venv
	$(BIN)/python tools/portability.py $(QUICK)

# Every test that asserts learning, with 20 seeds.
seeds: venv
	OMP_NUM_THREADS=1 $(BIN)/python tools/check_seeds.py

audit: venv
	$(BIN)/python tools/audit.py --check

# How often each verb changes rooms of the package on its way.
walk: venv
	$(BIN)/python tools/trace_walk.py

venv: $(VENV)/.dev

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# torch and torchvision first, as the pair that the constraints name: a resolver left alone may mix releases.
$(VENV)/.user: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing into $(VENV): some minutes the first time"
	$(PIP) torch torchvision
	$(PIP) -e '.[vision,report,onnx]'
	@touch $@

$(VENV)/.dev: $(VENV)/.user
	@echo "installing what developers need into $(VENV)"
	$(PIP) -e '.[dev]'
	@touch $@

$(VENV)/.bench: $(VENV)/.dev
	$(PIP) -e '.[bench]'
	@touch $@

$(VENV)/.docs: $(VENV)/.dev
	$(PIP) -e '.[docs]'
	@touch $@

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/peers.py
	$(BIN)/python benchmarks/tables.py

tables: venv
	$(BIN)/python benchmarks/tables.py

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache
