# `make help` lists the targets. Variables: VENV (.venv), PYTHON (the interpreter that makes it), ARGS (for pytest),
# JOBS (processes that `make test` uses, each with servers of its own; more than cores: tests wait), MEASURED (how much
# of the code `make test` reaches).
SHELL := /bin/bash
MAKEFLAGS += --no-print-directory
# The tests start a thousand processes: without bytecode each would compile everything that it imports.
unexport PYTHONDONTWRITEBYTECODE

VENV ?= .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
JOBS ?= 4
# The long files come first by their names, and those of tests/unit, which are short, fill up the end.
SPREAD := --dist loadfile --no-loadscope-reorder
comma := ,

DEV := $(VENV)/.installed-dev
TRAINING := $(VENV)/.installed-dev+training
# What only the tests with PyTorch can reach, and their data.
TOGETHER := torch_ranks group exchange leader rendezvous
empty :=
MATRIX := $(BIN)/python -m tests.faults.matrix --smoke --scenario worker_frozen_in_transaction --add
NEEDS_TORCH := $(subst $(empty) $(empty),$(comma),client/bso_client/integrations/* $(TOGETHER:%=client/bso_client/distributed/%.py))
TRAINED := .cache/coverage/training
# The specification that docs/asyncapi.yaml is held against.
ASYNCAPI := .cache/asyncapi/3.0.0.json
# The demonstrations need less than development does; where that is installed, nothing more is.
DEMO := $(if $(wildcard $(DEV)),$(DEV),$(VENV)/.installed-demo+web)
QUEUE := $(if $(wildcard $(DEV)),$(DEV),$(VENV)/.installed-demo+server+mysql)

.DEFAULT_GOAL := help
.PHONY: help demo demo-queue venv servers test coverage unit test-newest test-slow test-training test-gpu test-browser test-packaging lint types audit dist asyncapi faults fuzz bench bench-quick bench-pages decisions clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name words; do printf '  %-14s %s\n' "$$name" "$$words"; done

demo: $(DEMO) ## train a real classifier again and again until its best batch size is known; no server needed
	$(BIN)/bso demo

demo-queue: $(QUEUE) servers ## the same through a private RabbitMQ, a private MariaDB and two workers
	$(BIN)/python -m tools.demo_queue

venv: $(DEV) ## make the virtual environment with everything that development needs

$(VENV)/.installed-%: pyproject.toml tools/make-venv
	tools/make-venv $(VENV) $(subst +,$(comma),$*)
	@touch $@

servers: ## install MariaDB, RabbitMQ and PostgreSQL if they are missing (Debian, as root)
	@tools/install-servers

test: servers $(DEV) $(ASYNCAPI) ## rules, types, the tests that are not slow
	@$(MAKE) -j2 --output-sync=target lint types
ifeq ($(MEASURED),)
	$(PYTEST) -n $(JOBS) $(SPREAD) $(ARGS)
else
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n $(JOBS) $(SPREAD) $(ARGS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report --omit="$(NEEDS_TORCH)"
	@$(BIN)/coverage json --quiet --omit="$(NEEDS_TORCH)" -o .cache/coverage/report.json
	@$(BIN)/python -m tools.check_coverage .cache/coverage/report.json
endif

coverage: ## the same, measured: how much of the code the tests reach, and that it is enough
	@$(MAKE) test MEASURED=yes

unit: $(DEV) ## the tests that need no server
	$(PYTEST) tests/unit $(ARGS)

test-newest: $(DEV) ## the suites marked newest on a real MySQL 9 and RabbitMQ 4 (Debian, as root; 900 MB in /var/tmp)
	PYTHON=$(abspath $(BIN))/python tools/newest-servers run $(PYTEST) -m 'newest and not slow' $(ARGS)

test-slow: servers $(DEV) ## the tests marked slow
	@tools/install-servers alerts
	$(PYTEST) -m slow -n 2 $(SPREAD) -o faulthandler_timeout=1900 $(ARGS)

test-training: $(TRAINING) ## the tests with PyTorch, transformers, Lightning and Zeus, which are installed (large)
ifneq ($(ARGS),)
	$(PYTEST) tests/training -m "not slow" -n 2 $(SPREAD) $(ARGS)
else
	$(BIN)/coverage erase --data-file=$(TRAINED)
	@# Not by greenlet: CPython 3.11 that traces hangs when two threads end at once and coverage minds their greenlets.
	$(BIN)/coverage run --concurrency=thread --data-file=$(TRAINED) -m pytest tests/training -m "not slow" -n 2 $(SPREAD)
	@$(BIN)/coverage combine --quiet --data-file=$(TRAINED)
	@$(BIN)/coverage report --data-file=$(TRAINED) --include="$(NEEDS_TORCH)" --fail-under=75
endif

test-gpu: ## the tests on this machine's NVIDIA GPU, with the torch that is installed; they set no power limit
	$(BIN)/python -m pytest tests/gpu -m gpu $(ARGS)

lint: $(DEV) ## style, formatting, import rules
	$(BIN)/ruff check --quiet
	$(BIN)/ruff format --check --quiet
	@mkdir -p .cache
	@$(BIN)/lint-imports --cache-dir .cache/import-linter >.cache/import-linter.log || { cat .cache/import-linter.log; exit 1; }

types: $(DEV) ## mypy (strict) and pyright
	$(BIN)/mypy
	$(BIN)/pyright

# 75: the service could not be asked, and the audit has said so.
audit: $(DEV) ## ask whether a vulnerability is known of what the image ships and the wheel requires (ARGS="-s osv")
	@$(BIN)/python -m tools.audit $(ARGS) || [ $$? = 75 ]

test-browser: servers $(DEV) ## the pages in a real browser, Chromium; its pictures of them lie in build/pages
	@tools/install-servers browser
	$(PYTEST) tests/browser -m browser $(ARGS)

test-packaging: $(DEV) ## build the distribution, upload it to a private index, install it from there and try it
	$(PYTEST) tests/packaging -m packaging --timeout 900 -o faulthandler_timeout=1000 $(ARGS)

dist: $(DEV) ## build the sdist and the wheel of a release in dist, check what an index would check, list what they need
	@rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*.tar.gz dist/*.whl
	$(BIN)/python -m tools.write_sbom dist

faults: $(DEV) ## strike many jobs with faults and audit what came of it: build/faults.json (ARGS="--help")
	@tools/install-servers faults
ifneq ($(ARGS),)
	$(BIN)/python -m tests.faults.matrix $(ARGS)
else
	@status=0; $(BIN)/python -m tests.faults.matrix || status=1; \
	$(MATRIX) --database postgresql || status=1; \
	export PYTHON=$(abspath $(BIN))/python; if urls=$$(tools/newest-servers start); then \
	  eval "$$urls"; $(MATRIX) --database given || status=1; tools/newest-servers stop; \
	else $(MATRIX) --database given --not-run "MySQL 9 and RabbitMQ 4 do not start here"; fi; exit $$status
endif

fuzz: servers $(DEV) ## 200 000 messages of all kinds of nonsense among good ones (ARGS="--help")
	$(BIN)/python -m tests.faults.fuzz $(ARGS)

bench: servers $(DEV) ## what decisions cost, against peers: build/bench.json, build/performance; 45 minutes (ARGS="--help")
	$(BIN)/python -m tests.benchmarks $(ARGS)

bench-quick: servers $(DEV) ## the same in 6 minutes, with a tenth of the work: shows that it runs, and roughly how fast
	$(BIN)/python -m tests.benchmarks --quick $(ARGS)

bench-pages: $(DEV) ## what the pages of 1 000 jobs and 100 000 trials cost a browser: build/pages.json (ARGS="--help")
	@tools/install-servers browser
	@mkdir -p build
	$(BIN)/python -m tests.benchmarks.pages --output build/pages.json $(ARGS)

decisions: $(DEV) ## how well batch sizes are chosen in noisy worlds: a page of results in build/decisions; half an hour (ARGS="--help")
	$(BIN)/python -m tests.benchmarks.decisions $(ARGS)

asyncapi: $(DEV) ## write docs/asyncapi.yaml from the messages and the topology
	$(BIN)/python -m docs.write_asyncapi

$(ASYNCAPI): | $(DEV)
	@tools/fetch-asyncapi-schema $(BIN)/python $@

clean: ## remove what the targets made, the virtual environment included
	rm -rf $(VENV) build dist .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
