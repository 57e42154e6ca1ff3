# Every target works on a machine that has make and Python 3.11 or newer; see README.md for the variables.
SHELL := /bin/sh
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c "import sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null && echo $$p && exit; done; echo python3)
LAUNCH := $(PYTHON) -m deploy.local
MAIN := .venv/bin/python
ENGINE := .venv-engine/bin/python

.DEFAULT_GOAL := help
.PHONY: help up down status logs demo bench bench-prefill bench-connector bench-router bench-index bench-correctness test-vllm prepare browser frontend lock seams fmt lint \
	test test-unit test-engine test-frontend test-browser test-e2e test-correctness

help:
	@echo 'make up             start everything on this machine (P=1 D=1 P_PREFIX_CACHE=0) and wait until it works'
	@echo 'make status         how each part is'
	@echo 'make logs S=router  follow the log of one part, or of all'
	@echo 'make demo           an agentic conversation on the running stack, with and without reuse'
	@echo 'make down           stop it; nothing is lost'
	@echo 'make test           everything below; installs what it needs'
	@echo '  lint              ruff, mypy --strict, import contracts'
	@echo '  test-unit         units and integration on real Postgres, Valkey and websockets'
	@echo '  test-engine       the connector in the environment of the engines'
	@echo '  test-frontend     types, lint and tests of the page'
	@echo '  test-browser      the page in headless Chromium'
	@echo '  test-e2e          the whole stack with a real pair of engines'
	@echo '  test-correctness  60 random histories and 40 raced releases, every leg against a recompute'
	@echo 'make bench-correctness  the same at length (SEED=1 HISTORIES=2000 RELEASES=1000)'
	@echo "make test-vllm      vLLM's own unit tests of its NIXL connector, stock and with ours in it"
	@echo 'make bench-prefill  pulled against recomputed prefill, ours against stock vLLM'
	@echo 'make bench-connector  throughput, step time and idle cost, ours against stock vLLM (ARGS=--quick: 4 min)'
	@echo 'make bench-router   the router against vllm-router and the engine direct, zero-compute engines (ARGS=--quick: 2 min)'
	@echo 'make bench-index    memory of the router a lease, and its lookups (ARGS="--leases 50000": seconds)'
	@echo 'make bench          every benchmark'
	@echo 'make seams          which seams of vLLM moved, by release (RELEASES=0.33.0 ARGS=--run); needs the package index'
	@echo 'make fmt            format the sources'
	@echo 'make frontend       build the page'
	@echo 'make lock           write requirements/*.txt anew (needs uv)'

up down status prepare browser:
	@$(LAUNCH) $@

logs:
	@$(LAUNCH) logs $(S)

demo:
	@$(MAIN) -m deploy.demo

bench: bench-prefill bench-connector bench-router bench-index

bench-prefill: prepare
	@$(MAIN) -m tests.load.bench_prefill $(ARGS)

bench-connector: prepare
	@$(MAIN) -m tests.load.bench_connector $(ARGS)

bench-router: prepare
	@$(MAIN) -m tests.load.bench_router $(ARGS)

bench-index: prepare
	@$(MAIN) -m tests.load.bench_index $(ARGS)

test-vllm: prepare
	@$(MAIN) -m tests.vllm_suite

bench-correctness: prepare
	@$(MAIN) -m tests.load.correctness --seed $(or $(SEED),1) --histories $(or $(HISTORIES),2000) \
		--releases $(or $(RELEASES),1000) $(ARGS)

frontend: prepare
	@$(LAUNCH) npm run build

test: prepare browser
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory test-frontend
	@$(MAKE) --no-print-directory test-unit
	@$(MAKE) --no-print-directory test-engine
	@$(MAKE) --no-print-directory test-browser
	@$(MAKE) --no-print-directory test-e2e
	@$(MAKE) --no-print-directory test-correctness

lint:
	$(MAIN) -m ruff check .
	$(MAIN) -m ruff format --check .
	$(MAIN) -m mypy
	$(MAIN) .venv/bin/lint-imports --no-cache

test-unit:
	$(MAIN) -m pytest tests --ignore=tests/browser --ignore=tests/contract --ignore=tests/e2e

test-engine:
	cd tests/contract && ../../$(ENGINE) -m pytest

test-frontend:
	@$(LAUNCH) npm run check

test-browser:
	$(MAIN) -m pytest tests/browser

test-e2e:
	$(MAIN) -m pytest tests/e2e --durations=25

test-correctness:
	$(MAIN) -m tests.load.correctness --histories 60 --releases 40

seams: prepare
	@$(ENGINE) -m tests.contract.releases $(RELEASES) $(ARGS)

fmt:
	$(MAIN) -m ruff check --fix --exit-zero .
	$(MAIN) -m ruff format .
	@$(LAUNCH) npm run format

lock:
	sh requirements/lock.sh
