# make demo: from a fresh clone to answers.   make test: everything that must hold.   make help: the rest.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo follow test test-cost parts check kernels lint bench figures bench-drafters clean

PYTHON ?= python3
BIN := .venv/bin
# errors only: a site with several package indexes gets a page of warnings otherwise. Python compiles what is imported, a
# tenth of what is installed, so pip need not compile all of it.
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile

# The stamp carries a checksum of what was installed from, so that a changed pin installs again and nothing else does.
DRAFTERS := packages/augury-smollm2-drafters
KEY := $(shell cat pyproject.toml constraints.txt $(DRAFTERS)/pyproject.toml | cksum | cut -d ' ' -f 1)
STAMP := .venv/.installed-$(KEY)

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */\1|/' | \
		while IFS='|' read -r name text; do printf '  make %-14s %s\n' "$$name" "$$text"; done

setup: $(STAMP)  ## make .venv, install with constraints.txt, fetch the embedded model (idempotent)
	@$(BIN)/augury models pull default

$(STAMP):
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@# torch first and by itself, so that the CPU build is taken where the site provides it
	@echo "installing torch into .venv (the first time takes two or three minutes in all)"
	@$(PIP) -c constraints.txt torch==$$(sed -n 's/^torch==//p' constraints.txt)
	@echo "installing augury and everything it is tested with"
	@$(PIP) -c constraints.txt -e '.[dev]' -e $(DRAFTERS)
	@rm -f .venv/.installed-*
	@touch $@

demo: setup  ## three prompts answered, plain against n-gram and EAGLE-3
	@$(BIN)/augury demo
	@echo "\`source $(BIN)/activate\`, and \`augury\` is a command of your shell"

check: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

# The tests are typed by themselves: that takes two minutes the first time, and a stale name fails its test anyway.
lint: check  ## ruff, and mypy over the package and its tests
	cd tests && ../$(BIN)/mypy --config-file mypy.ini .

# Debian's packages that some tests drive for real, each with its command and those tests.
PARTS := chromium,chromium,tests/serve/test_page*.py chromium-driver,chromedriver,tests/serve/test_page*.py \
	prometheus,prometheus,the-scrape-by-Prometheus-and-promtool prometheus-alertmanager,amtool,tests/tools/monitor/test_monitor_promtool.py

parts:  ## the browser and the Prometheus that some tests drive, where root may install them
	@absent() { for part in $(PARTS); do IFS=, read -r package name tests <<< "$$part"; \
		command -v "$$name" > /dev/null || echo "$$package $$tests"; done; }; \
	wanted=$$(absent | cut -d ' ' -f 1 | tr '\n' ' '); \
	if [ -n "$$wanted" ] && [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
		echo "installing $$wanted"; \
		(apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $$wanted) \
			> /dev/null 2>&1 || true; \
	fi; \
	absent | while read -r package tests; do echo "left out: $$tests, because there is no $$package (apt-get install it)"; done

# Compiled once, and beside the types: every worker and every server of the tests would compile the same again.
kernels:
	@echo "compiling the CPU kernels (two minutes, the first time)"
	@TQDM_DISABLE=1 $(BIN)/python tests/helpers/warm_kernels.py

# One worker more than there are cores, up to four: each waits for servers and clocks now and then.
WORKERS ?= $(shell cores=$$(nproc 2> /dev/null || sysctl -n hw.ncpu); echo $$((cores < 4 ? cores + 1 : 4)))
# A worker that dies (a hang ends its process, see pyproject.toml) ends the run: started anew, xdist would wait for ever.
PYTEST := $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0

test:  ## lint, types, all tests
	@$(MAKE) --no-print-directory -j2 setup parts
	@$(MAKE) --no-print-directory -j2 check kernels
	$(PYTEST)

test-cost: setup  ## all tests, and what each file and test takes in processor seconds
	PYTHONPATH=tests/helpers $(PYTEST) -p cost

follow: setup  ## every block of README and docs that can be run, as a reader would run it
	$(BIN)/python tests/helpers/follow_pages.py

bench: setup  ## this engine and its peers, side by side
	$(BIN)/augury bench

figures: setup  ## measure the speed-ups that README and docs state (some ten minutes on a quiet machine)
	$(BIN)/python tests/helpers/figures.py

bench-drafters: $(STAMP)  ## n-gram and suffix look-ups, against a rescan and, where installed, arctic-inference
	$(BIN)/python -m augury.tools.bench.lookup

clean:  ## remove .venv and caches (the models stay: augury models remove)
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
