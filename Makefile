# make demo and make test do all the set-up a fresh machine needs; both only want Python 3.11 or later.
PYTHON ?= python3
BIN = .venv/bin
WORKERS ?= auto

EXTRAS = dev,docs,ray,deploy,monitor,onnx,tensorboard,mlflow,wandb,parquet,images,huggingface,privacy
PIP = $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: install demo docs dist release test test-slow test-siege test-gpu test-lowest lint audit sbom lock clean

# What the demo needs: the package and its own dependencies.
.venv/package: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) -e .
	touch $@

# What the tests need too: all extras, and the tools of development.
.venv/installed: .venv/package
	$(PIP) -e '.[$(EXTRAS)]'
	touch $@

install: .venv/installed

demo: .venv/package
	$(BIN)/sfedhp run

docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The site: site/index.html"

# What a release publishes: wheel, source distribution, site and notes, checked, in dist/.
dist: install
	$(BIN)/python tools/release.py --only-build

# A release: make release VERSION=0.2.0
release: test
	$(BIN)/python tools/release.py $(VERSION)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -q -n $(WORKERS) --cov --cov-report=
	$(BIN)/coverage report --fail-under=95
	$(BIN)/coverage report --fail-under=100 --include='sfedhp/algorithms/*,sfedhp/engine/rounds.py,sfedhp/core/vectors.py,sfedhp/core/keys.py'

test-slow: install
	$(BIN)/pytest -q -m slow

# A federation of processes with one malicious member, while others are killed; python -m tools.malicious_member
# does it for as long as one likes.
test-siege: install
	$(BIN)/python -m tools.malicious_member --minutes 2 --kill-every 20

test-gpu: install
	$(BIN)/pytest -q -m gpu

# The lowest versions that pyproject.toml promises, with the tests of what needs no extra.
test-lowest:
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/pip install --quiet --disable-pip-version-check -c constraints-lowest.txt -e . pytest pytest-xdist hypothesis
	.venv-lowest/bin/pytest -q -n $(WORKERS) $(shell cat tests/lowest.txt)

.venv-audit/installed: constraints-audit.txt
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/pip install --quiet --disable-pip-version-check -r constraints-audit.txt
	touch $@

# Known vulnerabilities of everything that is installed; needs the network.
audit: install .venv-audit/installed
	.venv-audit/bin/pip-audit --skip-editable --path "$$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])')"

# Everything that is installed, with versions and licenses, as CycloneDX in sbom.json.
sbom: install .venv-audit/installed
	.venv-audit/bin/cyclonedx-py environment $(BIN)/python --of JSON -o sbom.json

# The packages that a deployment needs, with their hashes, for this platform.
lock: install
	$(BIN)/python tools/lock.py --extras deploy requirements-$$(uname -s | tr A-Z a-z)-$$(uname -m).lock

clean:
	rm -rf .venv .venv-lowest .venv-audit sbom.json .coverage* .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist site *.egg-info
