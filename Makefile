# The short commands, the same here and in CI. `make` alone lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
DOCS_INSTALLED := $(VENV)/.docs-installed
PROGRAMS := process or ray or deploy or browser
MARKED := run or $(PROGRAMS) or fuzz or encoder or gpu or soak
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest
# Programs start faster where Python keeps what it has compiled.
export PYTHONDONTWRITEBYTECODE :=
FILES := --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help env demo test runs deployed static check test-all soak test-flowers format \
	docs clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' Makefile

env: $(INSTALLED) ## create .venv and install everything; the others do so when needed

demo: $(INSTALLED) ## compare FedAvg and FedWeIT on real digits; pages in runs/demo
	rm -rf runs/demo
	$(BIN)/fcl compare --strategies fedavg,fedweit --dataset digits \
		--clients 3 --tasks 3 --rounds 3 --output runs/demo

test: $(INSTALLED) ## run every test that starts no federation and no program
	$(PYTEST) -m "not ($(MARKED))" -n 2 --dist worksteal

runs: $(INSTALLED) ## run the tests of federations in one process
	mkdir -p build
	$(PYTEST) -m "(run or encoder or gpu) and not ($(PROGRAMS) or fuzz or soak)" \
		-n 2 --dist worksteal --durations-file=build/durations-runs.txt

static: $(INSTALLED) ## check format, lint, types, layers and the project's own rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tools/rules.py

check: static test ## run static and test: what should hold before each commit

# These mostly wait for their programs: more of them run than there are cores. A file stays
# with one worker, as its tests may share a federation.
deployed: $(INSTALLED) ## run the tests that start programs: federations, Ray, browsers
	mkdir -p build
	$(PYTEST) -m "($(PROGRAMS)) and not soak" -n 4 $(FILES) \
		--durations-file=build/durations-programs.txt

test-all: $(INSTALLED) ## run test, runs and deployed: all but soak
	mkdir -p build
	$(PYTEST) -m "not ($(PROGRAMS) or fuzz or soak)" -n 2 --dist worksteal \
		--durations-file=build/durations.txt
	$(MAKE) deployed

soak: $(INSTALLED) ## run for a night: every method, long fuzzing, coverage of nine tenths
	$(PYTEST) -m "not ($(PROGRAMS))" -n 2 --dist worksteal --cov --cov-fail-under=90
	$(PYTEST) -m "soak and ($(PROGRAMS))" -n 2 $(FILES)

test-flowers: $(INSTALLED) ## run a plain federation on the oldest, newest and nightly Flower
	$(BIN)/python tools/flowers.py $(FLOWERS)

format: $(INSTALLED) ## bring the code into the one format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(DOCS_INSTALLED) ## build the manual as a site in build/site; broken links are errors
	$(BIN)/python docs/generate.py --check
	$(BIN)/python docs/sentences.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean: ## remove what these commands made, but for the results in runs/
	rm -rf $(VENV) build dist .coverage .hypothesis
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Made again when a dependency changes; touched last, so that a failed installation
# is not taken for a finished one.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "make: $(PYTHON) is not Python 3.11 or newer; name one with PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo "make: $(PYTHON) cannot create environments; install python3-venv"; exit 1; }
	@echo "installing into $(VENV), a few minutes the first time"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[dev]' -c constraints.txt
	@touch $@

# What builds the manual is installed when it is first built.
$(DOCS_INSTALLED): $(INSTALLED)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -e '.[dev,docs]' -c constraints.txt
	@touch $@
