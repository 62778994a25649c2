# make demo and make test do all the set-up a fresh machine needs; both only want Python 3.11 or later.
PYTHON ?= python3
BIN = .venv/bin
WORKERS ?= auto

.PHONY: install demo test test-slow test-gpu lint clean

install: .venv/installed

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,ray,deploy,monitor,parquet,images,huggingface]'
	touch $@

demo: install
	$(BIN)/sfedhp run

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

test-gpu: install
	$(BIN)/pytest -q -m gpu

clean:
	rm -rf .venv .coverage* .mypy_cache .pytest_cache .ruff_cache .hypothesis build *.egg-info
