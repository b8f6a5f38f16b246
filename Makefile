# Everything runs in .venv, which the first target that needs it sets up; nothing else is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
EXTRAS := $(VENV)/.extras

.DEFAULT_GOAL := help
.PHONY: help demo test test-network test-slow coverage check size corpus format pictures words docs wheel nightly release lock bench-peers clean

help: ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# PyTorch first and by its exact version: a CPU build where one is at hand, never several gigabytes of CUDA by surprise.
# pip compiles modules one after another, which is half of its time; compileall does it on every core.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0
	$(PIP) -e '.[dev,deploy]'
	$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true  # templates in it are no Python
	touch $(STAMP)

# What only tests need, so that a demo does not wait for it; the few modules they use are compiled when they are.
$(EXTRAS): $(STAMP)
	$(PIP) -e '.[dp,diffusion,tune,ray,peft]'
	touch $(EXTRAS)

demo: $(STAMP) ## Compare methods on real handwritten digits and write a report (about a minute)
	rm -rf demo
	$(BIN)/unskew run --out demo
	@echo "Open demo/report.html in a browser."

# Tests of a file stay together as long as both workers have some (worksteal), since they share what they made.
PYTEST := $(BIN)/python -m pytest -q
IN_TWO := -n 2 --dist worksteal

test: $(EXTRAS) ## All tests but the slow ones and those of many processes
	$(BIN)/lint-imports --no-logo
	$(PYTEST) -m "not slow and not gpu and not network" $(IN_TWO)

test-network: $(EXTRAS) ## Federations and clusters of real processes (a minute or two)
	$(PYTEST) -m "network and not slow"

test-slow: $(EXTRAS) ## The slow tests: minutes of training on real data, faults in a federation of processes
	$(PYTEST) -m "slow"

# Tests draw the same examples each time; at night they draw others.  A failure prints the line that repeats it.
nightly: $(EXTRAS) ## Fresh random examples for every property
	$(PYTEST) -m "hypothesis and not gpu" $(IN_TWO) --hypothesis-profile=nightly

# What refuses bytes and files from elsewhere, and who may leave what: no line of it should go untried.
GUARDS := unskew/wire.py,unskew/runtime/validation.py,unskew/run/checkpoint.py,unskew/server/privacy.py
coverage: $(EXTRAS) ## Lines and branches that tests reach, and those of wire, validation, checkpoint and privacy that they do not
	mkdir -p build
	$(BIN)/coverage run -m pytest -q -m "not slow and not gpu and not network"
	$(BIN)/coverage report
	$(BIN)/coverage report --include=$(GUARDS) --show-missing

# Training, whole runs, reports, deployments, examples and the conformance grid wait for `make test`, and so do tests
# marked `seconds` and three of four examples of Hypothesis: this is to stay under two minutes.
QUICK := --hypothesis-profile quick tests/test_*.py $(addprefix tests/,algorithms corpus data experiment models record server world)

check: $(EXTRAS) ## Format, lint, types, layers, sizes and the tests of single parts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python docs/sizes.py
	$(PYTEST) -m "not slow and not seconds and not gpu and not network" $(IN_TWO) -x $(QUICK)

size: ## Lines of each part beside its target and its ceiling
	$(PYTHON) docs/sizes.py

corpus: $(EXTRAS) ## Rewrite the corpus of behaviour and say what changed
	$(BIN)/python -m tests.corpus

format: $(STAMP) ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

pictures: $(STAMP) ## Draw the pictures of README and guides from demo/ (after make demo)
	$(BIN)/python docs/pictures.py

words: $(STAMP) ## List long sentences, long guides and words of our own dialect
	$(BIN)/python docs/words.py

docs: $(STAMP) ## Build the documentation site into build/docs
	$(PIP) -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Installed beside the source, with the environment's packages: what a wheel lacks is missed here and not by a user.
wheel: $(STAMP) ## Build the wheel and run an experiment from it, away from this folder
	rm -rf build/lib build/wheel
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir build/wheel .
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target build/wheel/site build/wheel/*.whl
	cd build/wheel && PYTHONPATH=site ../../$(BIN)/python -c "import unskew; assert 'wheel' in unskew.__file__, unskew.__file__"
	cd build/wheel && PYTHONPATH=site ../../$(BIN)/python -m unskew run digits --set rounds=1 --set seeds=[0] --quiet --out run
	test -s build/wheel/run/report.html

# Stops before any upload: it needs a version without .dev, said in CHANGELOG.md, and a tree that is committed.
release: $(STAMP) ## Build and check what would be uploaded, in build/release, with its bill of materials
	test -z "$$(git status --porcelain)" || { echo "commit first"; exit 1; }
	version=$$($(BIN)/python -c "from unskew.version import __version__ as v; print(v)"); \
	  case $$version in *dev*) echo "unskew/version.py has $$version: no release"; exit 1;; esac; \
	  grep -q "^## $$version (20" CHANGELOG.md || { echo "CHANGELOG.md has no date for $$version"; exit 1; }; \
	  grep -q "^version: $$version$$" CITATION.cff || { echo "CITATION.cff is not $$version"; exit 1; }
	$(PIP) build twine cyclonedx-bom
	rm -rf build/release && $(BIN)/python -m build --outdir build/release .
	$(BIN)/twine check --strict build/release/*
	$(BIN)/cyclonedx-py environment --of JSON --output-file build/release/sbom.json $(BIN)/python
	$(MAKE) wheel
	@ls -l build/release; echo "Nothing was uploaded.  Next: twine upload build/release/unskew-*"

# Every file by its hash, for those who install on a machine that is to be trusted.
lock: $(STAMP) ## Write requirements.lock: what a deployment needs, with hashes
	$(PIP) uv
	$(BIN)/uv pip compile pyproject.toml --extra deploy -c constraints.txt --generate-hashes \
	  --python-version 3.11 --python-platform x86_64-unknown-linux-gnu --no-header --no-annotate --quiet \
	  --output-file requirements.lock

bench-peers: $(STAMP) ## Measure unskew beside Flower, pfl-research, FedJAX, fluke and PFLlib (gigabytes of downloads, over an hour)
	$(BIN)/python bench/peers/run.py

clean: ## Remove what make made
	rm -rf $(VENV) demo build .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .grimp_cache *.egg-info
