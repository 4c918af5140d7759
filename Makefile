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

.PHONY: help demo test coverage test-rest soak soak-backends soak-busy soak-healing soak-celery soak-crowd soak-fencing soak-handles soak-idempotency soak-interrupts soak-leader soak-once soak-revoke soak-run soak-tasks soak-views newest nightly kills play-of-backends play-of-mutants storm-of-tasks lint format messages house docs docs-tables bench bench-figures matrix museum screenshots pictures dist clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

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

# WORLDS=1000: fewer. It goes on where it was interrupted, until the code changes.
WORLDS ?= 200000
soak: $(VENV)/.has-dev ## Very many simulated worlds, on all cores, resumable
	$(BIN)/python -m tests.simulation --soak --worlds $(WORLDS) $(ARGS)

# ARGS="--releases 10000": fewer.
soak-healing: $(VENV)/.has-dev ## 100,000 releases at the moment when a renewal heals the lease
	$(BIN)/python -m tests.faults.healing $(ARGS)

# RUNS=20: fewer.
RUNS ?= 500
soak-busy: $(VENV)/.has-dev ## Fresh processes beside busy loops: no healthy node is called silent
	$(BIN)/python -m tests.faults.busy --runs $(RUNS)

# ARGS=--others: celery-once and celery-singleton beside it.
soak-celery: $(VENV)/.has-dev ## 10,000 messages through Celery workers that are killed, on nodes that die
	$(BIN)/python -m tests.celery.soak $(ARGS)

# ARGS="--limits 5 --strikes 6": less. ARGS="--calm 10 --hold 0.1": nobody is struck.
soak-crowd: $(VENV)/.has-dev ## 50 processes for the 1, 2, 5 and 32 slots of a name; they and nodes are struck
	$(BIN)/python -m tests.faults.crowding $(ARGS)

# ARGS="--databases sqlite": not PostgreSQL and MariaDB.
soak-fencing: $(VENV)/.has-dev ## 10,000 additions on each database by processes that are stopped and killed
	$(BIN)/python -m tests.fencing.counters $(ARGS)

# ARGS="--seconds 60": less. ARGS=--broken: an undone heal wakes waiters, which shows the lost handles.
soak-handles: $(VENV)/.has-dev ## Ten minutes of leases that are handed over beside heals, revokes and deaths
	$(BIN)/python -m tests.faults.handles $(ARGS)

# ARGS="--clients 50 --databases sqlite": fewer. ARGS=--nodes-down: no node. ARGS="--with NAME": others.
soak-idempotency: $(VENV)/.has-dev ## 500 clients that repeat requests to workers that are killed
	$(BIN)/python -m tests.idempotency.soak $(ARGS)

# ARGS="--plays 200": fewer. ARGS="--body 0.03": most fall into the body. ARGS="--broken careless": steps that learn of no interruption.
soak-interrupts: $(VENV)/.has-dev ## 2,000 interruptions at random moments of locks on real nodes
	$(BIN)/python -m tests.faults.signals $(ARGS)

# ARGS="--kills 10 --stops 10": fewer. ARGS=--broken: leaders that believe a flag; ARGS="--broken early": that release before the work
# ends. Both show two at a time.
soak-leader: $(VENV)/.has-dev ## 100 leaders that are killed and 100 that are stopped: never two at a time
	$(BIN)/python -m tests.faults.leading $(ARGS)

# ARGS="--names 100 --kills 10": fewer.
soak-once: $(VENV)/.has-dev ## 1,000 names, each done once by 20 processes that are killed at work
	$(BIN)/python -m tests.faults.doing_once $(ARGS)

# ARGS="--leases 20": fewer. ARGS=--now: by deletion, which shows the second believers.
soak-revoke: $(VENV)/.has-dev ## 200 leases taken away at random moments, beside nodes that die and hang
	$(BIN)/python -m tests.faults.revoking $(ARGS)

# ARGS="--plays 20": fewer.
soak-run: $(VENV)/.has-dev ## 100 commands under redlock_run that ignore SIGTERM, each struck by a fault
	$(BIN)/python -m tests.django.plays_of_run $(ARGS)

# Django 6 has tasks, and needs a Python newer than the oldest: the newest one has an environment of its own.
# ARGS="--tasks 400 --keys 40 --kills 4": fewer.
soak-tasks: ## 2,000 of Django's own tasks of 200 keys, by workers that are killed
	@newest="$$($(PYTHON) -m dev.tools.pythons)"; \
		$(MAKE) $${newest:+PYTHON="$$newest" VENV=.venv-newest} storm-of-tasks

storm-of-tasks: $(VENV)/.has-dev
	$(BIN)/python -m tests.tasks.storm $(ARGS)

# They are installed into an environment that is thrown away. ARGS="-k rq": fewer.
soak-backends: ## Other people's backends of Django's tasks, each with its own worker
	@newest="$$($(PYTHON) -m dev.tools.pythons)"; \
		$(MAKE) $${newest:+PYTHON="$$newest" VENV=.venv-newest} play-of-backends

play-of-backends: $(VENV)/.has-dev
	$(BIN)/python -m pytest -s -m nightly tests/tasks/test_backends.py $(ARGS)

# ARGS="--only gunicorn --submits 100": fewer. Daphne is played where it is installed.
soak-views: $(VENV)/.has-dev ## 1,000 double submits to each of gunicorn, uvicorn and REST framework
	$(BIN)/python -m tests.views.soak $(ARGS)

newest:
	@newest="$$($(PYTHON) -m dev.tools.pythons)"; \
		[ -z "$$newest" ] || $(MAKE) PYTHON="$$newest" VENV=.venv-newest .venv-newest/.has-dev

# ARGS="--minutes 30": a part. ARGS="--only soak demo": these entries. ARGS=--list: what is due, and why.
# ARGS="--only soak-celery --seed 417": the play of that night again.
nightly: $(VENV)/.has-dev $(VENV)/.has-docs newest ## What only many plays can show, and is due: an hour or more; each entry is recorded
	$(BIN)/python -m tests.nightly $(ARGS)

# ARGS="--mutants 40": fewer. ARGS="--without FILE" or ARGS='-k "votes or marks"': as if these tests were gone. ARGS="--again FILE":
# the mutants of an earlier file of rows. ARGS="--again FILE --only tests/core": against these tests alone.
kills: ## Random mutants of the package against the quick tests: who kills which; it goes on where it was
	@newest="$$($(PYTHON) -m dev.tools.pythons)"; \
		$(MAKE) $${newest:+PYTHON="$$newest" VENV=.venv-newest} play-of-mutants

play-of-mutants: $(VENV)/.has-dev
	$(BIN)/python -m dev.tools.kills -m "$(QUICK)" $(ARGS)

lint: $(VENV)/.has-dev ## Check style, format, types and translations
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/python -m dev.tools.messages --check
	@echo "Checking types. The first time that takes about a minute ..."
	$(BIN)/mypy

format: $(VENV)/.has-dev ## Format the code and apply safe fixes
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

# ARGS=fr: begin a language.
messages: $(VENV)/.has-dev ## Bring the catalogues of translations up to date
	$(BIN)/python -m dev.tools.messages $(ARGS)

# ARGS=--each: every function on the way.
house: $(VENV)/.has-dev ## How large each folder is, and how long the way of one lock through the package
	$(BIN)/python -m dev.tools.house $(ARGS)

# -E: all pages, for Sphinx forgets the entries of the index of pages that it does not write again.
docs: $(VENV)/.has-docs ## Build the documentation; a warning is an error. Then words, language, twenty tasks
	$(BIN)/sphinx-build -E -W --keep-going -b html docs docs/_build/html $(ARGS)
	@$(BIN)/python -m dev.tools.language
	@$(BIN)/python -m dev.tools.words docs/_build/html
	$(BIN)/python -m dev.tools.find docs/_build/html
	$(BIN)/python -m dev.tools.walk docs/_build/html

docs-tables: $(VENV)/.has-dev ## Hunt every broken variant, and write the page about it
	$(BIN)/python -m tests.simulation --table docs/dev/mutants.md

# ARGS="--against REV": two revisions of ours beside each other; it fails when the newer one is slower.
bench: $(VENV)/.has-dev ## What a lock costs, beside sockets and other clients
	$(BIN)/python -m dev.benchmarks $(ARGS)

bench-figures: $(VENV)/.has-dev ## The same, into the page "Performance"
	$(BIN)/python -m dev.benchmarks --figures . $(ARGS)

# ARGS="--only setnx-del paused": these locks, faults or cells. ARGS="--short": a minute.
museum: $(VENV)/.has-dev ## The locks that people copy, each broken by a fault, and this one beside them
	$(BIN)/python -m dev.museum $(ARGS)

matrix: $(VENV)/.created ## The tests on each Python with oldest and newest libraries, on three servers
	$(BIN)/python -m dev.tools.matrix $(ARGS)

# ARGS=--terminals: without a browser.
screenshots: $(VENV)/.has-dev $(VENV)/.has-demo ## The photographs of README and docs, by chromium
	$(BIN)/python -m dev.tools.screenshots $(ARGS)

pictures: $(VENV)/.has-dev ## The drawings of README and docs, each from its data
	$(BIN)/python -m dev.tools.pictures $(ARGS)

dist: $(VENV)/.has-dev ## Wheel and sdist for the package index, checked
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

clean: ## Remove the environments and everything that was built
	rm -rf $(VENV) .venv-newest .cache .coverage .coverage.* build dist docs/_build .hypothesis .mypy_cache .pytest_cache .ruff_cache
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
