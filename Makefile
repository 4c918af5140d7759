# Each target installs what it needs into $(VENV) first, and again when pyproject.toml changes.
PYTHON ?= python3
VENV ?= .venv
# More arguments for the target's command: make test ARGS="-k fence"
ARGS ?=

# pytest keeps the modules that it has rewritten, which halves the time of the next start.
unexport PYTHONDONTWRITEBYTECODE

BIN := $(VENV)/bin
NEEDED := $(shell sed -n 's/^requires-python = ">=\(.*\)"/\1/p' pyproject.toml)
NEWER := python3.14 python3.13 python3.12 python3.11

.PHONY: help demo test test-rest coverage lint check format messages docs pictures bench museum soak nightly newest matrix dist kills clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ONCE=1: five acts that end by themselves, with a verdict.
ONCE ?=
demo: $(VENV)/.has-demo ## A site on five nodes, a crowd, dying nodes; ONCE=1: with an end
	$(BIN)/python -m example_project.demo $(if $(filter-out 0,$(ONCE)),--once) $(ARGS)

# Three tiers. Quick: scripted replies, virtual time, nodes in memory. The rest of what decides about a
# change: real nodes, workers, servers, a browser, each with a real fault, judged by events. `nightly`
# below: what only many plays can show; it decides about no change.
QUICK := not slow and not tools and not nightly
REST := (slow or tools) and not nightly
# Of two cores, three workers leave a fifth idle, for tests also wait: 93 s for the quick ones. Four take
# 79 to 87 s, and more only make each other late.
WORKERS ?= 4

test: $(VENV)/.has-dev ## The quick tests of the package: a minute and a half
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "$(QUICK)" $(ARGS)

test-rest: $(VENV)/.has-dev ## What else must pass: real faults, processes, pages, tools; five minutes
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "$(REST)" $(ARGS)

# A process that a test kills has no figure, and neither has what a trace function of a test sees.
coverage: $(VENV)/.has-dev ## How much of the package the quick tests run, in lines and branches
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run -m pytest -n $(WORKERS) --dist worksteal -m "$(QUICK)" $(ARGS)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report

# What has Django's own tasks runs on the newest Python of the machine, for Django 6 needs one; so do
# mutants. There `make newest` makes an environment, where that Python is another one than $(PYTHON).
NEWEST := .venv-newest/bin/python

# Without ARGS: their names. ARGS="leader --kills 10 --stops 10": less of one. ARGS="leader --help": what it takes.
soak: $(VENV)/.has-dev $(if $(filter tasks backends,$(firstword $(ARGS))),newest) ## Many plays of one fault: ARGS="leader --kills 10"; without ARGS the list
	$(BIN)/python -m dev.soak $(ARGS)

newest:
	@newest="$$($(PYTHON) -m dev.tools.pythons)"; \
		[ -z "$$newest" ] || $(MAKE) PYTHON="$$newest" VENV=.venv-newest .venv-newest/.has-dev

# ARGS="--minutes 30": a part. ARGS="--only soak demo": these entries. ARGS=--list: what is due, and why.
# ARGS="--only soak-celery --seed 417": the play of that night again.
nightly: $(VENV)/.has-dev $(VENV)/.has-docs newest ## What only many plays can show, and is due: an hour or more; each entry is recorded
	$(BIN)/python -m dev.soak.nightly $(ARGS)

# ARGS="--mutants 40": fewer. ARGS="--without FILE" or ARGS='-k "votes or marks"': as if these tests were gone. ARGS="--again FILE":
# the mutants of an earlier file of rows. ARGS="--again FILE --only tests/core": against these tests alone.
kills: $(VENV)/.has-dev newest ## Random mutants of the package against the quick tests: who kills which; it goes on where it was
	"$$([ -x $(NEWEST) ] && echo $(NEWEST) || echo $(BIN)/python)" -m dev.tools.kills -m "$(QUICK)" $(ARGS)

lint: $(VENV)/.has-dev ## Check style, format, types and translations
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python -m dev.tools.messages --check
	@echo "Checking types. The first time that takes about a minute ..."
	$(BIN)/mypy

# Where a folder has outgrown its number in dev/sizes.toml, the change says why there, or becomes smaller.
check: lint ## The same, and whether a folder has grown beyond its size
	$(BIN)/python -m dev.tools.sizes

format: $(VENV)/.has-dev ## Format the code and apply safe fixes
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

# ARGS=fr: begin a language.
messages: $(VENV)/.has-dev ## Bring the catalogues of translations up to date
	$(BIN)/python -m dev.tools.messages $(ARGS)

# -E: all pages, for Sphinx forgets the entries of the index of pages that it does not write again.
docs: $(VENV)/.has-docs ## Build the documentation; a warning is an error. Then words, searches, twenty tasks
	$(BIN)/sphinx-build -E -W --keep-going -b html docs docs/_build/html $(ARGS)
	@$(BIN)/python -m dev.tools.words docs/_build/html
	$(BIN)/python -m dev.tools.find docs/_build/html
	$(BIN)/python -m dev.tools.walk docs/_build/html

# ARGS="--figures .": into the page "Performance". ARGS="--against REV": two revisions of ours beside each other; it fails when the newer one is slower.
bench: $(VENV)/.has-dev ## What a lock costs, beside sockets and other clients
	$(BIN)/python -m dev.benchmarks $(ARGS)

# ARGS="--only setnx-del paused": these locks, faults or cells. ARGS="--short": a minute.
museum: $(VENV)/.has-dev ## The locks that people copy, each broken by a fault, and this one beside them
	$(BIN)/python -m dev.museum $(ARGS)

matrix: $(VENV)/.created ## The tests on each Python with oldest and newest libraries, on three servers
	$(BIN)/python -m dev.tools.matrix $(ARGS)

pictures: $(VENV)/.has-dev ## The drawings of README and docs, each from its data
	$(BIN)/python -m dev.tools.pictures $(ARGS)

dist: $(VENV)/.has-dev ## Wheel and sdist for the package index, checked
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

clean: ## Remove the environments and everything that was built
	rm -rf $(VENV) .venv-newest __pycache__ .cache .coverage .coverage.* build dist docs/_build .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find dev django_redlock example_project tests -name __pycache__ -prune -exec rm -rf {} +

# A Python that is too old, or none: without this look, pip would say so after minutes. $(2): what to do before.
define check-python
@found=$$($(1) -c 'import sys; print("Python %d.%d.%d" % tuple(sys.version_info[:3]))' 2> /dev/null); \
	$(1) -c 'import sys; sys.exit(sys.version_info < tuple(map(int, "$(NEEDED)".split("."))))' 2> /dev/null && exit; \
	for newer in $(NEWER) ""; do $$newer -c "" 2> /dev/null && break; done; \
	[ -n "$$newer" ] && way="Write: $(2)" || way="Install it, then write: $(2)"; \
	echo "$(1) is $${found:-no Python that runs}, and Python $(NEEDED) or later is needed." \
		"$${way}make $(MAKECMDGOALS) PYTHON=$${newer:-python3.12}" >&2; exit 1
endef

# A stamp, because an interrupted `venv` leaves a python without pip; running it again completes it.
$(VENV)/.created:
	$(call check-python,$(PYTHON))
	@echo "Making an environment for Python in $(VENV). That takes some seconds ..."
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# .has-dev means: the dependency group "dev" is installed. Groups need pip 25.1; a venv may bring an older one.
$(VENV)/.has-%: pyproject.toml | $(VENV)/.created
	$(call check-python,$(BIN)/python,make clean && )
	@echo "Installing django-redlock and what '$*' needs into $(VENV). That takes about a minute ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check 'pip>=25.1'
	$(BIN)/python -m pip install --disable-pip-version-check -e . --group $*
	@touch $@ $(if $(filter dev,$*),$(VENV)/.has-demo) # "dev" includes "demo"
