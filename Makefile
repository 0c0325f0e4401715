# `make demo` and `make test` need only Python (3.11 or newer), make and git: both set up .venv first.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

.PHONY: demo test test-slow fuzz lint format docs setup clean

demo: $(READY)
	@$(BIN)/adaptask demo

PYTEST := $(BIN)/python -m pytest -q --numprocesses auto --maxprocesses 4 --dist loadgroup

test: $(READY)
	@$(PYTEST) -m "not slow"

# Kills, several processes, Ray, damaged files, the wheel: about as long again.
test-slow: $(READY)
	@$(PYTEST) -m slow

# A hundred thousand damaged files and some sixty kills; about twenty minutes on one core.
fuzz: $(READY)
	@OMP_NUM_THREADS=1 ADAPTASK_FUZZ_CASES=$${ADAPTASK_FUZZ_CASES:-100000} ADAPTASK_KILLS=$${ADAPTASK_KILLS:-12} $(BIN)/python -m pytest -q -s tests/faults

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(READY)
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(READY)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The documentation is in build/site/index.html"

setup: $(READY)

# Rebuilt when a dependency changes; the stamp comes last, so that an interrupted set-up starts over.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else f"adaptask needs Python 3.11 or newer, $(PYTHON) is {v[0]}.{v[1]}; try: make setup PYTHON=python3.12")'
	@echo "Setting up .venv (the first time takes a minute or two)"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	@touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
