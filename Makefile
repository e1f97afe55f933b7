# setup installs what is locked into .venv; every other target calls it. Downloads and builds are kept by version
# under ~/.cache/hisparse (XDG_CACHE_HOME puts them elsewhere).
SHELL := /bin/bash
.DEFAULT_GOAL := help

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/hisparse
UV := $(CACHE)/uv-0.13.8/bin/uv
BIN := .venv/bin
PYTHON ?= python3
# tests start some hundred Python processes: each would compile all of its packages again
unexport PYTHONDONTWRITEBYTECODE
# only `make demo KUBECONFIG=...` goes to a cluster of yours, never a KUBECONFIG that the shell happens to export
CLUSTER := $(if $(filter command line,$(origin KUBECONFIG)),--kubeconfig $(KUBECONFIG))

help:        ## what can be made
	@grep -hE '^[a-z0-9-]+: .*##|^[a-z0-9-]+:  *##' Makefile | sed -E 's/:.*##/\t/' | expand -t 14

setup: .venv/.synced  ## Python environment in .venv (about a minute the first time; no torch, no vLLM)

.venv/.synced: pyproject.toml uv.lock
	@command -v $(PYTHON) >/dev/null || { echo "setup needs Python 3.11 or newer as $(PYTHON)"; exit 1; }
	@test -x $(UV) || { echo "setup: installing uv"; $(PYTHON) -m venv $(CACHE)/uv-0.13.8 && $(CACHE)/uv-0.13.8/bin/pip install -q uv==0.13.8; }
	@echo "setup: installing the locked packages (about a minute the first time)"
	@env -u PIP_FIND_LINKS -u VIRTUAL_ENV $(UV) sync -q --frozen --extra dev --compile-bytecode --python $(PYTHON)
	@touch $@

control-plane: setup
	@$(BIN)/python -m hisparse_testenv tools --group control-plane

demo: control-plane  ## the main job, start to finish, on a local control plane (or: make demo KUBECONFIG=...)
	@$(BIN)/hisparse demo $(CLUSTER)

test: control-plane  ## every test that needs no root: pure, property and against a real API server
	$(BIN)/pytest -q -n 3 --dist loadgroup -m "not e2e and not engine and not chaos and not faults"

test-chaos: control-plane  ## takeovers, people, upgrades, rights, many nodes, against a real API server (ten minutes)
	$(BIN)/pytest -q -n 2 --dist loadgroup -m chaos

test-faults: control-plane  ## SIGKILL before every write, twenty faults of the network and the API server (15 to 30 minutes)
	$(BIN)/pytest -q -m faults

test-e2e: setup  ## a real kubelet and a real vLLM (root, Debian; about 25 minutes the first time)
	@$(BIN)/python -m hisparse_testenv tools --group control-plane --group real-node
	$(BIN)/pytest -q -m e2e

test-engine: setup  ## the planner against vLLM's own functions (CPU build of 0.32, sources of 0.33; 6 GB of disk)
	@$(BIN)/python -m hisparse_testenv.vllm_sources
	$(BIN)/pytest -q -m engine

lint: setup  ## ruff, mypy --strict, import contracts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

PAGES := tests/bench/agreement.py tests/bench/budgets.py tests/bench/peers.py tests/bench/claims.py

generate: setup  ## CRD, field reference, the operator's roles and the tables of docs/
	$(BIN)/python -m hisparse_toolkit.generate
	@for page in $(PAGES); do $(BIN)/python $$page --write || exit 1; done

verify: generate  ## generated files are what the code generates, and valid
	git diff --exit-code -- crds docs operator/deploy
	$(BIN)/pytest -q tests/contract -m "not cluster"

bench: control-plane  ## timings of the planner, what the node agent costs, the operator with 1,000 objects (half an hour)
	$(BIN)/python tests/bench/bench_plan.py
	$(BIN)/python tests/bench/bench_agent.py
	$(BIN)/python tests/bench/bench_scale.py

soak: control-plane  ## whether operator or node agent grow under churn (MINUTES=30)
	$(BIN)/python tests/bench/bench_soak.py $(or $(MINUTES),30)

clean:       ## what was built in this folder (not the cache)
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist

.PHONY: help setup control-plane demo test test-chaos test-faults test-engine test-e2e lint generate verify bench soak clean
