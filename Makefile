# make up    set everything up and run the main job
# make test  set everything up and pass the tests
# The virtual environment is .venv; state lives in .rackpulse; both can be removed at any time.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# Tests wait for servers more than they compute: more workers than half the cores pay.
WORKERS ?= 3
PARALLEL := --numprocesses $(WORKERS) --dist loadscope --no-loadscope-reorder

.PHONY: help up test test-all test-faults lint bench docs lock clean

help:
	@sed -n '1,3p' Makefile

$(STAMP): requirements.lock requirements-uv.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info[:2] < (3, 13) else "rackpulse needs Python 3.11 or 3.12; this is " + sys.version.split()[0] + ". Name one with: make PYTHON=python3.11 …")'
	@echo "installing into $(VENV) (one or two minutes, once) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-uv.lock
	@$(BIN)/python -m uv pip install --quiet --compile-bytecode --python $(BIN)/python --require-hashes -r requirements.lock
	@$(BIN)/python -m uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q pipeline  # where Python may not write bytecode, each start would compile
	@touch $@

up: $(STAMP)
	@exec $(BIN)/rackpulse up $(UP)

test: $(STAMP) lint
	$(BIN)/python -m pytest $(PARALLEL) -m 'not slow'

test-all: $(STAMP) lint
	$(BIN)/python -m pytest

test-faults: $(STAMP)
	RACKPULSE_FAULTS=full $(BIN)/python -m pytest -m faults -p no:cacheprovider --timeout 1200

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python -m bench.collectors
	$(BIN)/python -m bench.hall
	$(BIN)/python -m bench

docs: $(STAMP)
	$(BIN)/rackpulse docs data-dictionary > docs/data-dictionary.md

lock:
	printf 'uv>=0.9\n' | uv pip compile - --generate-hashes --no-emit-index-url --no-annotate --python-version 3.11 --custom-compile-command "make lock" --output-file requirements-uv.lock --quiet
	uv pip compile pyproject.toml --all-extras --group dev --generate-hashes --no-emit-index-url --python-version 3.11 --custom-compile-command "make lock" --output-file requirements.lock --quiet

clean:
	@test ! -e .rackpulse/up.lock || flock -n .rackpulse/up.lock true || { echo "rackpulse up is running on .rackpulse: stop it first (Ctrl-C there)"; exit 1; }
	rm -rf .rackpulse
