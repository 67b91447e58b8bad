# `make run` simulates the main job, `make test` runs every check. Both build .venv on first use and are quick after that.
#   PYTHON=python3.12   the interpreter to build .venv with (3.11 or newer)
#   TORCH=              leave torch out: the tests that need it skip. On Linux pip's usual torch is the large CUDA build;
#                       pip's own settings (pip.conf, PIP_* variables) are honored, so a CPU build can be chosen there.
PYTHON ?= python3
TORCH ?= torch==2.13.0
# Newer torchvision wheels cannot be imported with a CPU build of torch. The model definitions of this one work (Python 3.11).
TORCHVISION ?= torchvision==0.15.2
# Number of inputs for `make fuzz`.
INPUTS ?= 100000
# Number of processes of `make fuzz`; default: all cores.
JOBS ?=
VENV := .venv
BIN := $(VENV)/bin
ORACLES := $(VENV)/oracles
KEPT := $(VENV)/constraints.txt
# Skip compiling at install: most installed modules, above all torch's, are never imported.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

# The tests start hundreds of processes. Container images often set PYTHONDONTWRITEBYTECODE; then each process would recompile its
# imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test nightly due golden compared check style types imports spelling compiled oracles readme docs validated fuzz mutants bench clean
.DEFAULT_GOAL := run

run: $(VENV)/.run
	$(BIN)/python -m sim run hardware/p3.16xlarge.yaml workloads/vgg16.yaml

# All tests of one file run in the same process, so that they share fixtures and caches. The groups of pytest-xdist 3.8 cannot do this:
# they do not work with pytest 9.2.
PYTEST = $(BIN)/python -m pytest --benchmark-disable --numprocesses auto --dist loadfile --no-loadscope-reorder

test: check
	$(PYTEST) -m 'not nightly'

# What takes too long for every push: validation, refits, the largest models against torch, processes that are killed.
nightly: $(VENV)/.dev
	$(BIN)/python -m tests.nightly --all --budget inf

# Runs, for at most 40 minutes, the nightly tests that have not passed since the code or data they cover changed, and prints which ran and
# which did not. Both targets write tests/nightly_passed.txt, which is committed.
due: $(VENV)/.dev
	$(BIN)/python -m tests.nightly

# Runs the golden documents' scenarios again and writes their figures to tests/golden/documents/. Use it after changes that are meant to
# change figures.
golden: $(VENV)/.dev
	$(BIN)/python -m tests.golden.documents

# Compares every catalog model with torch and records in tests/extract/compared.json what was compared.
compared: $(VENV)/.dev
	$(BIN)/python -m tests.extract.compared

# The type check takes as long as the others together on one core, so they run in parallel.
check: $(VENV)/.dev
	@$(MAKE) --no-print-directory --jobs 2 types style imports spelling compiled

types: $(VENV)/.dev
	$(BIN)/mypy

style: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

imports: $(VENV)/.dev
	$(BIN)/lint-imports --no-logo

spelling: $(VENV)/.dev
	$(BIN)/codespell

# Each process of pytest that finds tests not compiled yet compiles all of them. In a fresh clone the core beside the type check does it once.
compiled: $(VENV)/.dev
	@test -d tests/__pycache__ || $(BIN)/pytest --collect-only --quiet -p no:cacheprovider > /dev/null || true

# Installs the programs that some tests compare with and that `make test` does not need, and runs those tests; `make test` finds them from
# then on. HolisticTraceAnalysis 0.5 fails with pandas 3, so it gets its own virtual environment, without dependencies that are not needed
# here (jupyterlab). SimGrid comes from the system: apt install python3-simgrid.
oracles: $(VENV)/.oracles
	$(BIN)/python -m pytest -rs --benchmark-disable tests/oracle tests/report/trace/test_run_trace.py tests/report/trace/test_layout_trace.py \
	  tests/report/test_figures.py tests/spec/test_json_schema.py $(if $(TORCH),tests/extract/test_sources.py tests/extract/test_unusual.py)

# Reruns the commands shown in README.md and docs/ and updates their output there.
readme: $(VENV)/.dev
	$(BIN)/python -m tests.shown

# Generates the pages of docs/reference from the program and builds the documentation site in build/site.
docs: $(VENV)/.dev
	$(INSTALL) --editable '.[docs]'
	$(BIN)/python -m tests.reference
	$(BIN)/python -m mkdocs build --strict --site-dir build/site

# Predicts the committed measurements again and writes the errors to docs/trust/validation.md and transformers.md, hardware/validated.json,
# validated_llm.json and validated_power.json. Takes half an hour on two cores.
validated: $(VENV)/.dev
	$(BIN)/python -m calibration.validate.published
	$(BIN)/python -m calibration.llm --published
	$(BIN)/python -m calibration.energy

# Reads INPUTS mutated files of every kind and command lines, and fails where one ends in anything but a result or an error message.
fuzz: $(VENV)/.dev
	$(BIN)/python -m tests.fuzz --inputs $(INPUTS)$(if $(JOBS), --jobs $(JOBS))

# Mutation tests of the modules for prices, sharing, attribution and schedules: fails if a mutant survives that
# tests/mutants/baseline.json does not list.
mutants: $(VENV)/.dev
	$(BIN)/python -m tests.mutants

# Prints how fast the program is on this machine and writes the medians to docs/trust/speed.md.
bench: $(VENV)/.dev
	$(BIN)/python -m tests.bench.table

clean:
	rm -rf $(VENV)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "stallsim needs Python 3.11 or newer; name one: make PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml | $(BIN)/python
	$(INSTALL) --editable .
	@touch $@

# timm requires the torch that torchvision was built with; if pip resolved it, it would replace our torch.
$(VENV)/.oracles: $(VENV)/.dev $(ORACLES)/.installed
	$(BIN)/python -m pip freeze --exclude-editable > $(KEPT)
	$(INSTALL) jsonschema pyarrow
	$(if $(TORCH),$(INSTALL) --constraint $(KEPT) transformers huggingface_hub safetensors pyyaml)
	$(if $(TORCH),$(INSTALL) --no-deps timm)
	@touch $@

$(ORACLES)/.installed: | $(BIN)/python
	$(BIN)/python -m venv $(ORACLES)
	$(ORACLES)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile 'pandas<3' networkx plotly psutil pydot pyyaml
	$(ORACLES)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps HolisticTraceAnalysis==0.5.0
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(if $(TORCH),$(INSTALL) '$(TORCH)')
	$(INSTALL) --editable '.[dev]'
	$(if $(TORCH),($(INSTALL) pillow requests && $(INSTALL) --no-deps '$(TORCHVISION)') || \
	  echo "torchvision cannot be installed here; the tests that need its models skip" >&2)
	@touch $(VENV)/.run $@
