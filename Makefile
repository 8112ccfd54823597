# The commands of this project. Everything but `setup` works from nothing: it sets up first.
#
#   make demo   [DEMO_ARGS="--once --json"]     make serve [SERVE_ARGS="--port 8080"]
#   make test   [TEST_ARGS="tests/unit -x"]     make bench [BENCH_ARGS="..."]
#   make lint   make coverage   make setup   make print-python
#
# PYTHON names the interpreter to build the environment with; LIVEEDGE_VENV its folder.
# The environment is shared by all checkouts with equal dependencies (see tools/environment.py),
# so this checkout's code is reached by PYTHONPATH, never by an install.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help setup demo serve test coverage lint format bench print-python

export PYTHONPATH := $(CURDIR)/src

# Two at once: most tests wait for processes and clocks. Each with one thread: OpenMP's threads of two
# processes that share two cores wait for each other.
TEST_ARGS ?= -n 2 --dist worksteal
test: export OMP_NUM_THREADS ?= 1

BASE := $(shell PYTHON='$(PYTHON)' sh tools/python.sh)
ifneq ($(BASE),)
VENV := $(shell $(BASE) tools/environment.py path)
endif
RUN := $(VENV)/bin/python

help:
	@sed -n 's/^# \{0,1\}//p' Makefile | sed -n '1,10p'

setup:
	@test -n '$(BASE)'
	@'$(BASE)' tools/environment.py setup

print-python: setup
	@echo '$(RUN)'

demo: setup
	@'$(RUN)' -m liveedge demo $(DEMO_ARGS)

serve: setup
	@'$(RUN)' -m liveedge serve $(SERVE_ARGS)

test: setup
	@'$(RUN)' -m pytest $(TEST_ARGS)

coverage: setup
	@'$(RUN)' -m coverage run -m pytest $(TEST_ARGS)
	@'$(RUN)' -m coverage report

lint: setup
	@'$(RUN)' -m ruff check
	@'$(RUN)' -m ruff format --check
	@'$(RUN)' -m mypy
	@'$(VENV)/bin/lint-imports'

format: setup
	@'$(RUN)' -m ruff check --fix
	@'$(RUN)' -m ruff format

bench: setup
	@'$(RUN)' bench/all.py $(BENCH_ARGS)
