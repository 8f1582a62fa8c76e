# Two commands: `make demo` and `make test`. Each makes .venv when it is missing and is quick when repeated.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check gpu clean

demo: $(VENV)/.demo
	$(BIN)/attrib demo --out out

test: $(VENV)/.dev check
	$(BIN)/pytest

# style, types and the direction of imports
check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# on a machine with a GPU: kernels, gates and the coverage probe on the device
gpu: $(VENV)/.dev
	$(BIN)/pytest -m gpu tests/gpu

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "attrib needs Python 3.11 or newer; set PYTHON=/path/to/python3" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV) || { $(PYTHON) -m pip install --user virtualenv && $(PYTHON) -m virtualenv $(VENV); }

# the engine's packages are small beside CUDA itself; a machine with a GPU records live in the demo
$(VENV)/.demo: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.$(if $(shell command -v nvidia-smi),[engine],)'
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[engine,dev]'
	@touch $@ $(VENV)/.demo

clean:
	rm -rf $(VENV) out .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
