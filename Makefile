# `make demo` and `make test` each make .venv if it is missing and install what they need. All targets:
#   demo          federated PCA on real data, with a report
#   check         lint, types and the quick half of the tests, in less than a minute: for people at work
#   test          all that must pass: lint, types, tests, the examples in README and docs; prints the coverage
#   test-long     the tests that take minutes, too
#   test-kernels  the numerical tests under every BLAS kernel of this processor, with a table
#   test-oldest   the tests with the oldest versions that pyproject.toml admits, in .venv-oldest
#   docs, bench   the site; what a round of the engine costs
#   wheel         wheel and sdist in dist/, checked, and the demo run from the wheel in an empty environment
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -q -c constraints.txt
# One process more than there are cores, because the tests of real federations mostly wait. Each keeps to one BLAS thread.
WORKERS ?= $(shell expr $$(nproc 2>/dev/null || echo 2) + 1)
HOLD := OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1
PYTEST := $(HOLD) $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -q
QUICK := tests/core tests/numerics tests/channel tests/algorithms tests/privacy tests/secure tests/data tests/test_architecture.py
PROSE := *.md CITATION.cff pyproject.toml docs src examples benchmarks
OLDEST := .venv-oldest

# In the C locale Python 3.11 cannot start from a folder whose name is not ASCII: it cannot read its own .pth files.
ifneq (,$(shell printf %s "$(CURDIR)" | LC_ALL=C grep '[^ -~]'))
export LC_ALL := C.UTF-8
endif

.PHONY: demo check test test-long test-kernels test-oldest lint types docs bench wheel clean

demo: $(VENV)/.installed-demo
	$(BIN)/fedspan demo --out demo-run

check: lint types
	$(PYTEST) -m "not long" $(QUICK)

test: lint types
	$(PYTEST) -m "not long" --cov --cov-report=

test-long: $(VENV)/.installed-dev
	$(PYTEST)

test-kernels: $(VENV)/.installed-dev
	$(BIN)/python .ci/kernels.py --workers $(WORKERS)

test-oldest: $(OLDEST)/.installed
	$(HOLD) $(OLDEST)/bin/python -m pytest -n $(WORKERS) --dist loadgroup -q -m "not long" tests src

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell $(PROSE)

types: $(VENV)/.installed-dev
	$(BIN)/mypy

docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo site/index.html

bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/engine.py

WHEEL := .venv-wheel
wheel: $(VENV)/.installed-dev
	rm -rf dist $(WHEEL)
	$(PIP) build twine
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	$(PYTHON) -m venv $(WHEEL)
	$(WHEEL)/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt dist/*.whl
	cd $(WHEEL) && $(HOLD) bin/fedspan demo --out demo-run
	rm -rf $(WHEEL)
	@ls dist/*

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-demo: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e .
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[dev]"
	touch $@ $(VENV)/.installed-demo

$(OLDEST)/.installed: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip --disable-pip-version-check install -q -c constraints-oldest.txt -e ".[test]"
	touch $@

clean:
	rm -rf $(VENV) $(OLDEST) .venv-wheel dist .coverage demo-run site .pytest_cache .mypy_cache .ruff_cache .hypothesis
