# Every target does its own set-up; the first takes minutes, later ones start at once.
# Tools run as `python -m`: a script's first line cannot hold a path with a space on every system.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.installed-docs
SOURCES := src tests benchmarks examples scripts
# Two workers with one thread each: more threads per worker only compete for the same cores.
# A file stays with one worker, so that what its tests share is made once.
WORKERS ?= 2
PYTEST = OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile
# Some of the tests: make test PYTEST_ARGS="tests/test_graphs.py -k ring"
PYTEST_ARGS ?=

.PHONY: help demo docs test slow thorough lint format clean soak wheel-test test-network bench bench-gpu bench-exchange bench-network

help:
	@echo "make demo    train, overhear and show it on a page: sottovoce-demo/index.html"
	@echo "make docs    build the documentation as a site: build/site/index.html"
	@echo "make test    run the tests; some of them: PYTEST_ARGS='tests/test_graphs.py -k ring'"
	@echo "make slow    run the paper-scale tests"
	@echo "make thorough        run documented programs, open pages in a browser, kill real agents"
	@echo "make wheel-test      build an sdist and a wheel, and try the wheel in a clean environment"
	@echo "make soak    long trials of real agents: random kills, fuzzed messages, many rounds"
	@echo "make test-network    train across network namespaces (needs root and iproute2)"
	@echo "make bench   the simulator beside other programs on this CPU, and how it scales;"
	@echo "             beside an earlier revision: BENCH_OPTIONS='--against COMMIT'"
	@echo "make bench-gpu       the GPU's kernels beside a bare copy, vmap and a loop (needs CUDA)"
	@echo "make bench-exchange  a round of real agents beside a bare exchange of the same bytes"
	@echo "make bench-network   the same on links of LINK=1gbit (needs root and iproute2)"
	@echo "make lint    check format, lint and types"
	@echo "make format  rewrite the sources in the project's format"
	@echo "make clean   remove the environment, caches and results"

demo: $(STAMP)
	$(BIN)/python -c 'from sottovoce.cli import main; main()' demo

# Nothing is kept from an earlier build: pages also depend on the sources.
docs: $(DOCS_STAMP)
	@rm -rf build/site
	$(BIN)/python -m sphinx -q -E -W --keep-going -d build/doctrees -b html docs build/site
	@echo "open build/site/index.html"

test: $(STAMP)
	$(PYTEST) $(PYTEST_ARGS)

thorough: $(STAMP)
	$(PYTEST) -m 'thorough and not slow' $(PYTEST_ARGS)

slow: $(STAMP)
	$(PYTEST) -m slow $(PYTEST_ARGS)

wheel-test: $(STAMP)
	$(BIN)/python scripts/try_wheel.py

soak: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python tests/soak/soak.py
	OMP_NUM_THREADS=1 $(BIN)/python tests/soak/tls_soak.py

test-network: $(STAMP)
	scripts/test_network.sh $(BIN)/python
	scripts/test_federation.sh $(BIN)/python

bench: $(STAMP)
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m benchmarks.cpu $(BENCH_OPTIONS)
	$(if $(findstring --against,$(BENCH_OPTIONS)),,$(BIN)/python -m benchmarks.scaling)

bench-gpu: $(STAMP)
	$(BIN)/python -m benchmarks.gpu $(BENCH_OPTIONS)

bench-exchange: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m torch.distributed.run --standalone --nproc-per-node 4 benchmarks/exchange.py

LINK ?= 1gbit
bench-network: $(STAMP)
	scripts/bench_network.sh $(BIN)/python $(LINK) $(BENCH_OPTIONS)

lint: $(STAMP)
	$(BIN)/python -m ruff format --check $(SOURCES)
	$(BIN)/python -m ruff check $(SOURCES)
	$(BIN)/python -m mypy

format: $(STAMP)
	$(BIN)/python -m ruff format $(SOURCES)
	$(BIN)/python -m ruff check --fix $(SOURCES)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist sottovoce-results sottovoce-demo
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt
	@command -v "$(PYTHON)" >/dev/null 2>&1 || { \
	  echo "error: $(PYTHON) was not found; install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: $(PYTHON) is $$("$(PYTHON)" -V 2>&1); sottovoce needs Python 3.11 or newer: make PYTHON=/path/to/python3" >&2; exit 1; }
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "error: $(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@
