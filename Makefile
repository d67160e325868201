# Everything a newcomer needs: Python 3.11 or newer, and make. No compiler, no uv: that one is fetched into .venv/uv.
#
# Two environments, because the world demands it: Airflow's Kubernetes provider and kfp need different kubernetes
# clients; and a small one that builds the site. All are frozen (tests/requirements-*.lock), made once and made again only when a lock or a pyproject changes;
# after that no target needs the network.

# The first Python that is new enough. Another one: make PYTHON=/path/to/python3.12
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14 python; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
UV_VERSION := 0.13.9

AIRFLOW := .venv/airflow
KFP := .venv/kfp
DOCS := .venv/docs
FRAMEWORKS := .venv/frameworks
UV := .venv/uv/bin/uv
OURS_AIRFLOW := core provider
OURS_KFP := core kfp_components

# Arguments for the tool behind a target: make test ARGS="-k shards"
ARGS ?=

# Python starts two to five times slower without compiled modules, and these would lead it to other packages.
unexport PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX PYTHONPATH PYTHONHOME VIRTUAL_ENV CONDA_PREFIX
# Large wheels over slow lines; and 200 lines of "+ package" only where somebody watches the progress above them.
export UV_HTTP_TIMEOUT ?= 120
QUIET := $(shell test -t 2 || echo --quiet)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help env frameworks demo demo-cluster demo-kfp test test-all check score bench airflow-versions kfp-versions cluster-up cluster-down cluster-status cluster-test torture adoption docs pictures ui lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

env: $(AIRFLOW)/.made $(KFP)/.made ## the two environments, .venv/airflow and .venv/kfp (some 6 GB on disk, torch above all)

frameworks: $(FRAMEWORKS)/.locked ## the libraries whose checkpoints are known, .venv/frameworks; tests skip without it (6 GB, most of them shared)

demo: $(AIRFLOW)/.made ## train, evaluate and promote through Airflow, on this machine
	@$(call compiled,$(AIRFLOW),$(OURS_AIRFLOW))
	@$(AIRFLOW)/bin/python dags_examples/demo.py $(ARGS)

demo-cluster: $(AIRFLOW)/.made ## the same DAG on a real Kubernetes control plane of this machine (make cluster-up)
	@$(call compiled,$(AIRFLOW),$(OURS_AIRFLOW))
	@$(AIRFLOW)/bin/python dags_examples/demo_cluster.py $(ARGS)

demo-kfp: $(KFP)/.made ## the same chain as a KFP pipeline, under kfp.local
	@$(call compiled,$(KFP),$(OURS_KFP))
	@$(KFP)/bin/python dags_examples/demo_kfp.py $(ARGS)

test: env ## what needs no cluster, in both environments, but for the long rounds (6 minutes)
	@$(call compiled,$(AIRFLOW),$(OURS_AIRFLOW))
	@$(call compiled,$(KFP),$(OURS_KFP))
	@$(AIRFLOW)/bin/python tests/run.py $(ARGS)

test-all: env frameworks ## every test that needs no cluster
	@$(call compiled,$(AIRFLOW),$(OURS_AIRFLOW))
	@$(call compiled,$(KFP),$(OURS_KFP))
	@$(AIRFLOW)/bin/python tests/run.py --all $(ARGS)

check: $(AIRFLOW)/.made ## lint, format, types and the import contracts; all of them, also when one fails
	@failed=; \
	check() { echo "== $$*"; $(AIRFLOW)/bin/"$$@" || failed="$$failed, $$1"; }; \
	check ruff check --output-format concise .; \
	check ruff format --check --output-format concise .; \
	check mypy; \
	PYTHONPATH=kfp_components/src check lint-imports --no-logo --cache-dir .venv/cache/import-linter; \
	if [ -n "$$failed" ]; then echo "make check: failed: $${failed#, }"; exit 1; fi; echo "make check: all good"

torture: $(AIRFLOW)/.made ## 20,000 hostile jobs and 500 hostile command lines; what make test does in small (some 15 minutes)
	@$(call compiled,$(AIRFLOW),$(OURS_AIRFLOW))
	@failed=; \
	$(AIRFLOW)/bin/python -m tests.torture.jobs 0 20000 2>/dev/null || failed=yes; \
	$(AIRFLOW)/bin/python -m tests.torture.commands 0 500 || failed=yes; \
	test -z "$$failed"

score: $(AIRFLOW)/.made ## what allaboard convert makes of manifests that users published
	@$(AIRFLOW)/bin/python -m tests.core.convert.score

bench: $(AIRFLOW)/.made ## the speed figures, each beside its peer in the same run
	@$(call compiled,$(AIRFLOW),$(OURS_AIRFLOW))
	@$(AIRFLOW)/bin/python tests/bench/run.py $(ARGS)

airflow-versions: .venv/uv/$(UV_VERSION) ## the provider's tests beside every version of Airflow that is declared, the lowest of everything included (network, an hour)
	@.venv/uv/bin/python tests/provider/versions.py $(ARGS)

kfp-versions: .venv/uv/$(UV_VERSION) ## the components' tests beside the lowest and the newest kfp that is declared (network, 10 minutes)
	@.venv/uv/bin/python tests/kfp/versions.py $(ARGS)

cluster-up: $(AIRFLOW)/.made ## a real Kubernetes control plane with its operators, as processes of this machine (built the first time: Go, 15 minutes)
	@$(AIRFLOW)/bin/python -m tests.cluster up $(ARGS)

cluster-test: $(AIRFLOW)/.made ## the tests on that cluster, on the one that KUBECONFIG names, or on one of their own
	@$(call compiled,$(AIRFLOW),$(OURS_AIRFLOW))
	@test -n "$$KUBECONFIG" || $(AIRFLOW)/bin/python -m tests.cluster build || echo "the tests of what could not be built skip"
	@$(AIRFLOW)/bin/python tests/run.py --cluster $(ARGS)

adoption: $(AIRFLOW)/.made ## runs that the allaboard of an older commit started, in the hands of this one (make adoption FROM=COMMIT; 12 minutes)
	@test -n "$(FROM)" || { echo "make adoption: say FROM=COMMIT"; exit 2; }
	@ADOPT_FROM=$(FROM) $(AIRFLOW)/bin/python -m pytest -q -n0 --e2e tests/adoption tests/cluster/test_adoption.py $(ARGS)

cluster-status: $(AIRFLOW)/.made ## what runs of it, and where
	@$(AIRFLOW)/bin/python -m tests.cluster status

cluster-down: $(AIRFLOW)/.made ## stop it and remove all that is in it
	@$(AIRFLOW)/bin/python -m tests.cluster down $(ARGS)

docs: $(AIRFLOW)/.made $(DOCS)/.locked ## the site, links checked: dist/docs/html; and core/docs/lint.md, core/docs/causes.md (ARGS=--external: other hosts, too)
	@$(AIRFLOW)/bin/allaboard lint --rules > core/docs/lint.md
	@$(AIRFLOW)/bin/allaboard doctor --causes > core/docs/causes.md
	@$(AIRFLOW)/bin/python -m tests.docs.site.build $(ARGS)

pictures: $(AIRFLOW)/.made ## those of core/docs/pictures, from a real run in which a worker is killed, and from a real Airflow (Chromium; 4 minutes), on a cluster with KUEUE_TREE, too
	@$(AIRFLOW)/bin/python -m tests.docs.pictures.record core/docs/pictures/run.svg
	@$(AIRFLOW)/bin/python -m pytest -q -n0 tests/provider/ui/test_in_a_browser.py
	@cp .allaboard/pictures/airflow/light.png core/docs/pictures/airflow-training.png
	@cp .allaboard/pictures/airflow/waiting.png core/docs/pictures/airflow-waiting.png
	@cp .allaboard/pictures/airflow/dashboard.png core/docs/pictures/airflow-card.png
	@test ! -e $(FRAMEWORKS)/.locked || $(AIRFLOW)/bin/python -m tests.docs.pictures.frameworks core/docs/pictures
	@test -z "$$KUEUE_TREE" || $(AIRFLOW)/bin/python -m pytest -q -n0 --e2e tests/cluster/test_card.py
	@test -z "$$KUEUE_TREE" || cp .allaboard/pictures/airflow/cluster-card-light.png core/docs/pictures/airflow-queue.png

ui: ## build the browser code of the provider's tabs from provider/ui (npm, network the first time)
	@test -x provider/ui/node_modules/.bin/esbuild || npm --prefix provider/ui ci --no-audit --no-fund
	@npm --prefix provider/ui run --silent build
	@npm --prefix provider/ui test --silent

lock: .venv/uv/$(UV_VERSION) ## resolve the locks anew (make lock ARGS=--upgrade: to the newest of everything)
	$(call lock,airflow)
	$(call lock,kfp)
	$(call lock,docs)
	$(call lock,frameworks)

clean: ## remove the environments, all caches and what builds and examples left
	@test ! -e .allaboard/cluster/plane.json || $(AIRFLOW)/bin/python -m tests.cluster down
	rm -rf .venv dist */dist .allaboard .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find core provider kfp_components tests dags_examples -name __pycache__ -prune -exec rm -rf {} +

# --- how the environments are made ---------------------------------------------------------------------------

# $(1) name: what its lock says, made where it is not there. Wheels only, nothing is compiled on this machine; but
# kfp-server-api and deepspeed, pure Python here, are published as source archives alone.
define locked
echo "making .venv/$(1) from tests/requirements-$(1).lock (the first time it downloads: some minutes)"; \
test -x .venv/$(1)/bin/python || $(UV) venv --quiet --clear --python .venv/uv/bin/python .venv/$(1) && \
$(UV) pip sync $(QUIET) --python .venv/$(1)/bin/python --compile-bytecode \
  --only-binary :all: --no-binary kfp-server-api --no-binary deepspeed tests/requirements-$(1).lock
endef

# $(1) environment, $(2) our distributions: editable, built by the hatchling of the lock, without a network
define ours
$(UV) pip install --quiet --offline --python $(1)/bin/python --no-deps --no-build-isolation --reinstall \
  $(foreach dist,$(2),-e ./$(dist)) && \
$(call compiled,$(1),$(2))
endef

# $(1) our distributions: the files that their metadata comes from
facts = $(foreach dist,$(1),$(dist)/pyproject.toml $(wildcard $(dist)/src/*/__init__.py))

# $(1) environment, $(2) our distributions: compiled modules for what changed since the last time
compiled = $(1)/bin/python -m compileall -q $(foreach dist,$(2),$(dist)/src)

# $(1) name. Universal: one lock for every platform and every Python from 3.11.
lock = $(UV) pip compile $(QUIET) --universal --python-version 3.11 --no-annotate --custom-compile-command "make lock" \
  $(foreach dist,allaboard airflow-provider-allaboard kfp-allaboard,--no-emit-package $(dist)) \
  $(ARGS) tests/requirements-$(1).in --output-file tests/requirements-$(1).lock

.venv/uv/$(UV_VERSION):
	@test -n "$(PYTHON)" || { echo "allaboard needs Python 3.11 or newer and found none; say where it is: make PYTHON=/path/to/python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "allaboard needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1)" >&2; exit 2; }
	@echo "fetching uv $(UV_VERSION) into .venv/uv"
	@rm -rf .venv/uv
	@$(PYTHON) -m venv .venv/uv || { echo "$(PYTHON) cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 2; }
	@.venv/uv/bin/python -m pip install --quiet --disable-pip-version-check --only-binary :all: uv==$(UV_VERSION)
	@touch $@

.venv/%/.locked: .venv/uv/$(UV_VERSION) tests/requirements-%.lock
	@$(call locked,$*)
	@touch $@

$(AIRFLOW)/.made: $(AIRFLOW)/.locked $(call facts,$(OURS_AIRFLOW))
	@$(call ours,$(AIRFLOW),$(OURS_AIRFLOW))
	@touch $@

$(KFP)/.made: $(KFP)/.locked $(call facts,$(OURS_KFP))
	@$(call ours,$(KFP),$(OURS_KFP))
	@touch $@
