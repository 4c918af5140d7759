# Each target installs what it needs into $(VENV) first, and again when pyproject.toml changes.
PYTHON ?= python3
VENV ?= .venv
# More arguments for the target's command: make test ARGS="-k fence"
ARGS ?=

BIN := $(VENV)/bin

.PHONY: help demo test test-slow soak soak-busy lint format docs docs-tables bench bench-figures matrix screenshots clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ONCE=1: three acts that end by themselves, with a verdict.
ONCE ?=
demo: $(VENV)/.has-demo ## A site on five nodes, a crowd, dying nodes; ONCE=1: with an end
	$(BIN)/python -m example_project.demo $(if $(filter-out 0,$(ONCE)),--once) $(ARGS)

test: $(VENV)/.has-dev ## The tests that take at most three minutes
	$(BIN)/python -m pytest -n 4 --dist worksteal -m "not slow" $(ARGS)

test-slow: $(VENV)/.has-dev ## Kills, many processes, long runs
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow --timeout 600 $(ARGS)

# WORLDS=1000: fewer. It goes on where it was interrupted, until the code changes.
WORLDS ?= 200000
soak: $(VENV)/.has-dev ## Very many simulated worlds, on all cores, resumable
	$(BIN)/python -m tests.worlds --soak --worlds $(WORLDS) $(ARGS)

# RUNS=20: fewer.
RUNS ?= 500
soak-busy: $(VENV)/.has-dev ## Fresh processes beside busy loops: no healthy node is called silent
	$(BIN)/python -m tests.busy --runs $(RUNS)

lint: $(VENV)/.has-dev ## Check style, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/.has-dev ## Format the code and apply safe fixes
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

docs: $(VENV)/.has-docs ## Build the documentation; a warning is an error
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html $(ARGS)

docs-tables: $(VENV)/.has-dev ## Hunt every broken variant, and write the page about it
	$(BIN)/python -m tests.worlds --table docs/reference/mutants.md

bench: $(VENV)/.has-dev ## What a lock costs, beside sockets and other clients
	$(BIN)/python -m tests.bench $(ARGS)

bench-figures: $(VENV)/.has-dev ## The same, into the README and the page "Performance"
	$(BIN)/python -m tests.bench --readme README.md \
		--markdown docs/explanation/performance-figures.md $(ARGS)

matrix: $(VENV)/.created ## The tests on each Python with oldest and newest libraries, on three servers
	$(BIN)/python -m tools.matrix $(ARGS)

screenshots: $(VENV)/.has-dev $(VENV)/.has-demo ## The pictures of README and docs, by chromium
	$(BIN)/python -m tools.screenshots

clean: ## Remove the environments and everything that was built
	rm -rf $(VENV) .venv-newest .cache build dist docs/_build .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find django_redlock example_project tests tools -name __pycache__ -prune -exec rm -rf {} +

# A stamp, because an interrupted `venv` leaves a python without pip; running it again completes it.
$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	@touch $@

# .has-dev means: the extra "dev" is installed.
$(VENV)/.has-%: pyproject.toml | $(VENV)/.created
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[$*]'
	@touch $@
