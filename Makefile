# `make test` and `make demo` do all their own set-up: they need make and Python 3.11 or newer, nothing else.

PYTHON ?= python3
VENV ?= .venv
INSTALLED := $(VENV)/.installed
CODE := src tests examples $(wildcard benchmarks)
PYTEST_ARGUMENTS ?=

# What tests/system/ needs of Debian: network namespaces, containers, a Slurm, mpirun.
SYSTEM_PACKAGES := iproute2 nftables util-linux mount hostname runc slurmctld slurmd slurm-client munge openmpi-bin

.PHONY: help install test test-system lint format demo benchmark benchmark-parameter-server benchmark-report exactness exactness-report wheel test-keras-nightly

help:
	@echo "make test     everything CI runs: lint, format check, type check, tests"
	@echo "make test-system   real pods, a real Slurm, mpirun: needs root on Debian, and installs packages there"
	@echo "make demo     train examples/digits.py with 2 replicas and on one device, and compare"
	@echo "make lint     ruff and mypy only        make format   rewrite the code in the project's format"
	@echo "make benchmark   how fast strategies are on this machine, about 15 minutes; writes docs/benchmarks.md"
	@echo "make exactness   which numbers the peers give, about 3 minutes; writes docs/exactness.md"
	@echo "make wheel    build dist/*.whl, install it into an empty environment, run the command there"
	@echo "make test-keras-nightly   the tests on tomorrow's Keras, in .venv-nightly; a failure there blocks nobody"

install: $(INSTALLED)

# Newer pyproject.toml, newer installation. An environment without a working pip is a half-made one: it is made again.
$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "$(PYTHON) is $$($(PYTHON) --version); Trireme needs Python 3.11 or newer: make PYTHON=python3.11 ..."; exit 1; }
	@$(VENV)/bin/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(VENV)/bin/python -m pip install --quiet --editable '.[test]'
	@touch $@

# Each test file runs in one of two processes: much of a test is the start of workers, which keeps one core busy.
test: lint
	$(VENV)/bin/python -m pytest -n 2 --dist loadfile $(PYTEST_ARGUMENTS)

# Without root, or a system that has such packages, there is nothing to try: it says so and fails.
test-system: $(INSTALLED)
	@[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
		|| { echo "make test-system installs packages and makes network namespaces: it needs root on Debian"; exit 1; }
	@dpkg --status $(SYSTEM_PACKAGES) >/dev/null 2>&1 \
		|| { apt-get update --quiet=2 && DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --yes --no-install-recommends $(SYSTEM_PACKAGES) >/dev/null; }
	$(VENV)/bin/python -m pytest $(PYTEST_ARGUMENTS) tests/system

lint: $(INSTALLED)
	$(VENV)/bin/ruff check $(CODE)
	$(VENV)/bin/ruff format --check $(CODE)
	$(VENV)/bin/mypy

format: $(INSTALLED)
	$(VENV)/bin/ruff check --fix $(CODE)
	$(VENV)/bin/ruff format $(CODE)

demo: $(INSTALLED)
	$(VENV)/bin/python examples/demo.py

benchmark: $(INSTALLED)
	$(VENV)/bin/python benchmarks/scaling.py --backend tensorflow
	$(VENV)/bin/python benchmarks/scaling.py --backend jax
	$(MAKE) benchmark-report

# The peer needs legacy Keras, whose own dependency is another distribution of TensorFlow than the tests'.
benchmark-parameter-server: $(INSTALLED)
	$(VENV)/bin/python -m pip install --quiet --no-deps tf_keras
	$(VENV)/bin/python benchmarks/parameter_server.py
	$(VENV)/bin/python benchmarks/parameter_server_transport.py --output benchmarks/results/parameter_server_transport.json

benchmark-report: $(INSTALLED)
	$(VENV)/bin/python benchmarks/report.py

exactness: $(INSTALLED)
	$(VENV)/bin/python benchmarks/exactness_of_peers.py

exactness-report: $(INSTALLED)
	$(VENV)/bin/python benchmarks/exactness_of_peers.py --report

wheel: $(INSTALLED)
	rm -rf dist .venv-wheel
	$(VENV)/bin/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	$(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/python -m pip install --quiet dist/*.whl
	cd dist && ../.venv-wheel/bin/trireme --version

# keras-nightly is another distribution that owns the files of keras: it goes where keras was.
test-keras-nightly:
	$(MAKE) install VENV=.venv-nightly
	.venv-nightly/bin/python -m pip uninstall --quiet --yes keras
	-.venv-nightly/bin/python -m pip install --quiet --force-reinstall --no-deps keras-nightly \
		&& .venv-nightly/bin/python -m pytest $(PYTEST_ARGUMENTS)
