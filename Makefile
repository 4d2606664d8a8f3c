# Two commands do everything on a fresh machine: `make demo` and `make test`. Both make their own environment in
# .venv first (once; again only when pyproject.toml changes).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Where an environment forbids to keep bytecode, every process would translate torch anew, and start in twice the time.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test storm mutants docs lint types format clean

demo: $(READY)  ## train and evaluate on generated pictures: no data, no GPU, about two minutes
	$(BIN)/ressl demo

test: $(READY) lint types  ## lint, types, and all tests that this machine can run
	$(BIN)/pytest -n auto

storm: $(READY)  ## the full storm: kills, full disks, damaged and hostile files; under 10 minutes on two cores
	STORM=full $(BIN)/pytest -n auto --dist worksteal tests/storm

mutants: $(READY)  ## the storm, tested: every safety switched off in turn must turn a test red
	$(BIN)/python tests/storm/mutants.py

docs: $(READY)  ## the documentation as a site in site/; a warning is an error (with --quiet it would not be)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet uv
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
