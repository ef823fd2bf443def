# `make doctor` and `make test` need Python 3.11 or newer; everything else goes into .venv, once.
# Another interpreter: make PYTHON=/path/to/python3.12 test

PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$name" && break; done)
BIN := .venv/bin
READY := .venv/.ready
COMPILE := $(BIN)/python -m compileall  # on every core, where pip uses one

# The tests start hundreds of interpreters: each compiles our modules again where none may keep what it has compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: doctor test check bench docs golden recall recall-code recall-functions false-go mutants

doctor: $(READY)
	$(BIN)/nsa-doctor sweep --seq 128,512,1024,2048

# One thread per worker: two workers with two threads each are slower on two cores. The tests of nsa's operators and
# modules hold every call to its shapes and types; the others make many more calls, and wait for processes they start:
# those that take longest come first, and none of them is left for one worker at the end.
SHAPED := --jaxtyping-packages=nsa,beartype.beartype
test: $(READY)
	status=0; \
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 regressions tests --ignore tests/nsa/nn --ignore tests/nsa/ops || status=$$?; \
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(SHAPED) tests/nsa/nn tests/nsa/ops || status=$$?; \
	exit $$status

# A worker of mypy that a busy machine starts late ends it with 2, errors in types with 1.
check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2 || { test $$? = 2 && $(BIN)/mypy; }

bench: $(READY)
	$(BIN)/python -m pytest tests/benchmarks -o addopts="--strict-markers --strict-config --import-mode=importlib -ra" --timeout 600

golden: $(READY)
	$(BIN)/python -m pytest --golden

# The site, to build/site; what builds it is installed once, and nothing is fetched after that.
docs: $(READY)
	$(BIN)/python -c 'import material, mkdocs, mkdocstrings' 2>/dev/null || \
		$(BIN)/python -m pip install --disable-pip-version-check --no-input -c constraints.txt -e '.[docs]'
	PYTHONPATH=. $(BIN)/python docs/site_sources.py build/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet -f docs/mkdocs.yml
	@echo "written: build/site/index.html"

# For example: make recall ARGS="--family numerics --output score.json"
recall: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.gallery.recall $(ARGS)

# For example: make recall-code ARGS="--host lucid --view adapter"
recall-code: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.gallery_code.recall $(ARGS)

# For example: make recall-functions ARGS="--like flash --profile full"
recall-functions: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.gallery_functions.recall $(ARGS)

# For example: make false-go ARGS="--seed 1 --json rates.json"
false-go: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.false_go $(ARGS)

# For example: make mutants ARGS="--count 20 --seed 7"
mutants: $(READY)
	$(BIN)/python -m tests.mutants $(ARGS)

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11"; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, got " + sys.version.split()[0])'
	"$(PYTHON)" -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check --no-input --no-compile -c constraints.txt -e '.[dev]'
	@$(COMPILE) -qq -j 0 .venv/lib || true
	@touch $(READY)
