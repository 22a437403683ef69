# Three commands do everything on a fresh machine: `make demo`, `make test` and `make test-slow`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The plain torch of a package index brings gigabytes of CUDA. Where a CPU build of TORCH can be had it is taken;
# set TORCH= to accept whatever pip chooses.
TORCH ?= torch==2.13.0
JOBS ?= 2

.PHONY: demo test test-slow test-all test-browser check format docs fetch bench bench-paper bench-performance bench-verify bench-trust bench-determinism barrier clean

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet --editable '.[demo]'
	touch $@

# Groups of requirements in pyproject.toml, which says why they are four.
$(VENV)/.developer: $(VENV)/.installed
	$(BIN)/pip install --quiet $$($(BIN)/python tools/dev_requirements.py)
	$(BIN)/pip install --quiet --no-deps $$($(BIN)/python tools/dev_requirements.py bare)
	$(BIN)/pip install --quiet --no-deps --upgrade --target $(VENV)/apart $$($(BIN)/python tools/dev_requirements.py apart)
	$(BIN)/pip install --quiet --no-deps --upgrade --target $(VENV)/harness $$($(BIN)/python tools/dev_requirements.py harness)
	touch $@

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/pip install --quiet $$($(BIN)/python tools/dev_requirements.py docs)
	touch $@

demo: $(VENV)/.installed
	$(BIN)/isomerge demo --out demo-out

check: $(VENV)/.developer
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

# Outputs are cheap: no flushes to the disk, and one picture for all (tests/conftest.py). What is compiled is kept, for
# the processes that tests start, whatever the shell says.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest -n $(JOBS) --dist worksteal -rs --cheap-outputs

# Five minutes: what is cheap, and ten runs end to end (tests/tiers.py).
test: check
	$(PYTEST) --tier fast

# All else, the documentation included.
test-slow: $(VENV)/.developer docs
	$(PYTEST) --tier slow
	$(BIN)/python -m benchmarks.determinism --tests 'compatible, 2 threads'

# The same tests and outputs under every setting of MKL and torch (benchmarks/results/determinism.json; a quarter of an hour).
bench-determinism: $(VENV)/.developer
	$(BIN)/python -m benchmarks.determinism

# Both tiers, and every toy through every law: else the architectures that combine what others have go through the main ones.
test-all: check
	ISOMERGE_ALL_TOYS=1 $(PYTEST)

# The documentation site, in build/docs: pages made from the code first; a broken link fails.
docs: $(VENV)/.docs
	$(BIN)/python docs/make_architectures.py
	$(BIN)/python docs/make_reference.py
	$(BIN)/sphinx-build -q -W --keep-going -b html docs build/docs

# The report in headless Chromium; needs one on the PATH (Debian: apt-get install chromium).
test-browser: $(VENV)/.developer
	$(BIN)/pip install --quiet playwright==1.65.2
	ISOMERGE_BROWSER=required OMP_NUM_THREADS=1 $(BIN)/pytest tests/browser

format: $(VENV)/.developer
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The barriers' main table, as far as its figures are missing: trains what it needs, measures, and writes it into
# docs/lab/measured-barriers.md (many hours from nothing; resumable). `python -m benchmarks` names all benchmarks.
barrier: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.barrier

# All real data and checkpoints of the benchmarks, checked and converted (about 400 MB, into benchmarks/data; resumable).
fetch: $(VENV)/.developer
	$(BIN)/python -m benchmarks.fetch

# The paper's tables and figures, and docs/lab/measured-paper.md; says first how long each step takes (hours; resumable).
bench-paper: $(VENV)/.developer
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.paper

bench: $(VENV)/.developer
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.twins

# Speed and memory, side by side with mergekit, `cp` and a plain implementation, and docs/lab/performance.md (an hour).
bench-performance: $(VENV)/.developer
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.performance

# Forty twins and near-twins of every test model through `verify` (19,000 for 475 models, about six hours; resumable).
bench-verify: $(VENV)/.developer
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.verify

# A hundred thousand mutated inputs, two hundred killed merges and twenty killed Ray workers (hours; the first is resumable).
bench-trust: $(VENV)/.developer
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.fuzz --inputs 100000
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.kills --runs 200
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.ray_workers --runs 20

clean:
	rm -rf $(VENV) demo-out .pytest_cache .ruff_cache
