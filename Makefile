# make demo   set up, then: synthetic data → pack → serve → ResNet trains → summary and pictures
# make test   set up, then: lint, format, types and every test
# make test-shuffled  every test, in another order each time (SEED=N: again in that one)
# make test-starved   every test, while its processes and threads stop and starve (SEED=N)
# make fast   set up, then: lint, format and the pure tests (under a minute)
# make fix    the formatter and the linter's fixes
# make setup  the set-up alone: system packages, .venv, pillow-simd for this CPU, torch
# make peers  other loaders for `feeder-bench peers`, each in .peers/NAME (optional; up to 18 GB)
# make fuzz   a million damaged inputs, the C parts with sanitizers (about 15 minutes; MINUTES=60)
# make test-numa     the daemon in a virtual machine with two NUMA nodes (about three minutes)
# make test-systemd  the unit with its whole sandbox, systemd as process 1, in such a machine
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
TORCH := torch==2.13.0
# Most tests wait for daemons, so more at a time than there are cores, file by file as collected.
SUITE_OPTIONS := -q --numprocesses 3 --dist loadfile --no-loadscope-reorder
# The tests start some thousand Python processes, which would all compile anew what they import.
unexport PYTHONDONTWRITEBYTECODE
SUITE = $(BIN)/python -m pytest $(SUITE_OPTIONS)
PURE_TESTS := tests/test_directions.py tests/plan tests/wire tests/session tests/client/core

.DELETE_ON_ERROR:
.PHONY: setup demo test fast fix test-shuffled test-starved lint types check fuzz peers test-numa \
	test-systemd clean FORCE

setup: $(VENV)/.project

demo: setup
	@$(BIN)/python -m bench.demo --out demo

test: check
	@$(SUITE)

fast: lint
	@$(BIN)/python -m pytest -q --numprocesses 2 --dist worksteal $(PURE_TESTS)

fix: setup $(VENV)/.test-packages
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

test-shuffled: setup $(VENV)/.test-packages
	@seed=$(or $(SEED),$$(od -An -N2 -tu2 /dev/urandom | tr -d ' ')); echo "feeder: the order of SEED=$$seed"; \
	$(SUITE) --random-order-bucket=module --random-order-seed=$$seed

# All takes several times as long there, so what hangs is given as much longer.
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

peers: setup
	@$(BIN)/python -m bench peers-setup

test-numa: setup
	@.ci/system-packages $(PYTHON) qemu-system-x86
	@$(BIN)/python -m tests.numa.run

test-systemd: setup
	@.ci/system-packages $(PYTHON) qemu-system-x86 systemd
	@$(BIN)/python -m tests.numa.run unit

clean:
	rm -rf $(VENV) build demo .build *.egg-info feeder/jpeg/*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Each stamp is made anew when what it depends on has changed; with none stale, make is quick.

$(VENV)/bin/python:
	@.ci/system-packages $(PYTHON)
	@echo "feeder: making $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --upgrade pip

# Pillow-SIMD is always built here, for this CPU; pip's wheel cache does not know compiler flags. It
# is built anew when the list of what it is built with changes, when it is gone, and when a package
# that needs Pillow has had pip install that over it. A promised format that cannot be built is an
# error.
SITE_PACKAGES := $(VENV)/lib/python3*/site-packages
PILLOW_OVER_IT := $(wildcard $(SITE_PACKAGES)/[Pp]illow-[0-9]*.dist-info)
PILLOW_IS_GONE := $(if $(wildcard $(SITE_PACKAGES)/PIL/_imaging.*.so),,yes)
$(VENV)/.pillow-simd: pyproject.toml .ci/system-packages $(if $(PILLOW_OVER_IT)$(PILLOW_IS_GONE),FORCE) | $(VENV)/bin/python
	@.ci/system-packages $(PYTHON)
	@if [ -n "$(PILLOW_OVER_IT)" ]; then \
		echo "feeder: removing the Pillow that lies over Pillow-SIMD; what needs it belongs into an environment of its own"; \
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
	@$(PIP) install "$(TORCH)"
	@touch $@

$(VENV)/.project: pyproject.toml $(wildcard feeder/jpeg/native/*) $(VENV)/.pillow-simd $(VENV)/.torch
	@echo "feeder: building and installing the project"
	@rm -f feeder/jpeg/_native*.so  # one that is built anew, or none
	@$(PIP) --quiet install --editable '.[daemon,client,dev]'
	@$(BIN)/python -c 'from feeder.process.program import run_guarded; from feeder.jpeg.libraries import *; exit(run_guarded("feeder", lambda: check_libraries() or print("feeder: ready:", ", ".join(f"{name} {version}" for name, version in library_versions().items()))))'
	@touch $@

# The pictures of the bench are drawn in tests, too; `locales` is for names in other encodings.
$(VENV)/.test-packages: pyproject.toml | $(VENV)/.project
	@.ci/system-packages $(PYTHON) libjpeg-turbo-progs systemd locales
	@$(PIP) --quiet install --editable '.[plots]'
	@touch $@
