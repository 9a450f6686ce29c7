# Every target is described by the comment after ##; `make help` prints them.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help setup demo quick check test fuzz chaos soak torture mutants keep map docs deps clean

# The first Python on PATH that Lapse runs on; if none does, tools/bootstrap.py says so in one line.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	"$$p" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null && echo "$$p" && exit; \
	done; echo python3)
VENV_PYTHON := .venv/bin/python

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' Makefile

setup: ## lay out .venv from the lock file, find Java, compile the kernels; leaves .venv/bin/lapse
	@$(PYTHON) tools/bootstrap.py

demo: setup ## the main job on real flight records, about a minute (CRASH=1 kills things midway, BROKERS=3 is a cluster, KEEP=1 stays up, MASTER=URL is Spark's)
	@.venv/bin/lapse demo $(if $(CRASH),--crash) $(if $(BROKERS),--brokers $(BROKERS)) $(if $(KEEP),--keep) $(if $(MASTER),--master '$(MASTER)')

quick: setup ## lint, types, and the tests that mirror what changed (SINCE=main)
	@$(VENV_PYTHON) -m tools.quick $(if $(SINCE),--since $(SINCE))

check: setup ## lint, types, layers, and of unit and property tests all but the slow ones; no JVM, two minutes
	@LAPSE_TEST_SCALE=$${LAPSE_TEST_SCALE:-0.02} $(VENV_PYTHON) -m tools.run_tests lint inner

test: setup ## every kind of test, counts times LAPSE_TEST_SCALE (0.05)
	@$(VENV_PYTHON) -m tools.run_tests

fuzz: setup ## mutated input of every kind (CASES=10000, SEED=, ONLY=batches, CASE= for one alone); prints the seed
	@$(VENV_PYTHON) -m tests.fuzz $(if $(CASES),--cases $(CASES)) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY)) $(if $(CASE),--case $(CASE))

chaos: setup ## kill, fill, stop and garble everything while stock clients write and read (SEED=, MINUTES=2, ONLY=kill,clock, STORY=file, SHOW=1); prints seed and story
	@$(VENV_PYTHON) -m tests.chaos $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(ONLY),--only $(ONLY)) $(if $(STORY),--story $(STORY)) $(if $(SHOW),--show)

soak: setup ## two hours of load, with kills while it warms up: memory, handles, threads and files stay flat (MINUTES=120, SEED=); report into tests/soak.json
	@$(VENV_PYTHON) -m tests.chaos.soak --record tests/soak.json $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES))

torture: setup ## the same with full counts and a fresh seed; results into tests/torture.json
	@LAPSE_TEST_SCALE=1 $(VENV_PYTHON) -m tools.run_tests --record tests/torture.json

keep: setup ## keep the data directory that this commit writes, for later ones to open (NAME=019-what-it-was-about)
	@$(VENV_PYTHON) -m tests.golden.kept '$(NAME)'

mutants: setup ## one small change of the code at a time; does a test notice? (ONLY=decide, SEED=); hours; results into tests/mutants.json
	@nice -n 19 $(VENV_PYTHON) -m tools.mutants --record tests/mutants.json $(if $(ONLY),--only $(ONLY)) $(if $(SEED),--seed $(SEED))

map: setup ## write docs/internals/files.md and rooms.md from the code
	@$(VENV_PYTHON) -m tools.file_map

docs: setup ## the documentation as a site, into build/site; a link that leads nowhere is an error
	@$(VENV_PYTHON) -m tools.site

deps: ## install what the wider tests use (javac, maven, kcat, node, go), where root and apt are
	@$(PYTHON) tools/deps.py

clean: ## remove the environment and everything built or cached
	rm -rf .venv .tools build dist tests/oracle/target tests/compat/target tests/compat/java/target .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
