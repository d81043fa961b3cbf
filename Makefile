# Each target sets up all it needs; a second call finds the environment ready and starts at once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet

.PHONY: demo test lint clean

demo: $(VENV)/ready
	$(BIN)/espalier demo --out demo

test: $(VENV)/ready
	$(BIN)/python -m pytest

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) demo sheets

# torch goes first and alone: asked for as a dependency, pip may choose another build than the pinned one.
$(VENV)/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info[:2] in ((3, 11), (3, 12)) or sys.exit("Espalier needs Python 3.11 or 3.12: name one with make PYTHON=python3.11")'
	@echo "Setting up $(VENV): a few minutes the first time."
	$(PYTHON) -m venv $(VENV)
	$(PIP) install $$(grep '^torch==' constraints.txt)
	$(PIP) install --constraint constraints.txt --editable '.[dev]'
	@touch $@
