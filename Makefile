# Two commands: `make demo` and `make test`. Each makes .venv if it is missing and installs what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -q -c constraints.txt
# Tests run in as many processes as there are cores; each keeps its BLAS to itself.
WORKERS ?= $(shell nproc 2>/dev/null || echo 2)
PYTEST := OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -q

.PHONY: demo test test-long lint types docs bench clean

demo: $(VENV)/.installed-demo
	$(BIN)/fedspan demo --out demo-run

test: lint types
	$(PYTEST) -m "not long"

test-long: $(VENV)/.installed-dev
	$(PYTEST)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

docs: $(VENV)/.installed-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo site/index.html

bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/engine.py

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-demo: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e .
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[dev]"
	touch $@ $(VENV)/.installed-demo

clean:
	rm -rf $(VENV) demo-run site .pytest_cache .mypy_cache .ruff_cache .hypothesis
