# `make demo` and `make test` each start from nothing: they make .venv, install what is pinned, and run.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.PHONY: demo test check bench uci clean

demo: .venv/.installed
	$(BIN)/nodeslab demo

test: check
	$(BIN)/python -m pytest -n 2 --dist worksteal

check: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Figures that want a machine with nothing else to do, and data that want NODESLAB_DATA: commands, not tests.
bench: .venv/.installed
	$(BIN)/nodeslab bench step

uci: .venv/.installed
	$(BIN)/python benchmarks/uci.py

# torch comes first and by its exact version: a looser request may bring a build with several gigabytes of CUDA. So
# would torchvision, which pytorchcv asks for and the networks that are tested do not need.
.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) install "$$(grep '^torch==' constraints.txt)"
	$(PIP) install -c constraints.txt -e ".[dev]"
	$(PIP) install --no-deps "$$(grep '^pytorchcv==' constraints.txt)"
	touch $@

clean:
	rm -rf .venv build dist demo .mypy_cache .pytest_cache .ruff_cache
