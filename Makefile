# Each target installs what it needs into $(VENV) first, and again when pyproject.toml changes.
PYTHON ?= python3
VENV ?= .venv
# More arguments for the target's command: make test ARGS="-k fence"
ARGS ?=

BIN := $(VENV)/bin

.PHONY: help demo test test-slow lint format docs bench clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.has-embedded ## Five real nodes, competing processes, a killed and a hung node
	$(BIN)/python -m example_project.demo $(ARGS)

test: $(VENV)/.has-dev ## The tests that take at most three minutes
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow" $(ARGS)

test-slow: $(VENV)/.has-dev ## Kills, many processes, long runs
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow --timeout 600 $(ARGS)

lint: $(VENV)/.has-dev ## Check style, format and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/.has-dev ## Format the code and apply safe fixes
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

docs: $(VENV)/.has-docs ## Build the documentation; a warning is an error
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html $(ARGS)

bench: $(VENV)/.has-dev ## Measure against hand-written sockets
	$(BIN)/python -m tests.bench $(ARGS)

clean: ## Remove $(VENV) and everything that was built
	rm -rf $(VENV) build dist docs/_build .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find django_redlock example_project tests -name __pycache__ -prune -exec rm -rf {} +

# A stamp, because an interrupted `venv` leaves a python without pip; running it again completes it.
$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	@touch $@

# .has-dev means: the extra "dev" is installed.
$(VENV)/.has-%: pyproject.toml | $(VENV)/.created
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[$*]'
	@touch $@
