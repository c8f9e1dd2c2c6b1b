# `make run` and `make test` are all a fresh machine with Python 3.11+ needs.
PYTHON ?= python3
VENV   := .venv
READY  := $(VENV)/.ready
PY     := $(VENV)/bin/python

.PHONY: setup run test test-all lint lock clean

setup: $(READY)

# Pinned names, versions and hashes first; then the project itself, without
# letting pip choose anything.
$(READY): requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 14) else "blocklab needs Python 3.11 to 3.13; this is %d.%d (set PYTHON=...)" % sys.version_info[:2])'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(PY) -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps -e .
	touch $@

run: $(READY)
	$(PY) launch.py experiment=quickstart

test: $(READY)
	$(PY) -m pytest -q -n auto --dist loadfile -m "not slow"

test-all: $(READY)
	$(PY) -m pytest -q -n auto --dist loadfile

lint: $(READY)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

# Needs uv on the PATH. The result names packages, versions and hashes, no address.
lock:
	uv pip compile --universal --python-version 3.11 --generate-hashes \
	    --fork-strategy fewest --no-header \
	    --extra dev pyproject.toml -o requirements.lock

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
