# paceline: `make demo` to see it, `make test` to check it. Needs python3 >= 3.11 with pip and venv and a network.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
EXTRAS := dev,train,bench,judge,ray

BIN   := $(VENV)/bin
READY := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test lint clean

help:  ## what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-6s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY)  ## plain against drafted decoding on the embedded model
	@$(BIN)/paceline demo

test: $(READY)  ## every test, the fast ones first (only those: make test ARGS='-m "not slow"')
	@$(BIN)/pytest $(ARGS)

lint: $(READY)  ## ruff, formatting and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

clean:  ## remove the virtual environment and every cache
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# torch goes first, by its exact version, so that a CPU build that is at hand is taken.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "paceline needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet $(shell grep '^torch==' constraints.txt)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[$(EXTRAS)]'
	@# xgrammar asks for triton, several hundred megabytes that only its CUDA kernel imports.
	$(BIN)/python -m pip install --quiet --no-deps $(shell grep -E '^(xgrammar|apache-tvm-ffi)==' constraints.txt)
	@touch $@
