# `make demo` and `make test` do all the set-up themselves, in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

.PHONY: demo test wheel-test check format bench docs clean
.DEFAULT_GOAL := demo

# The stamps depend on what decides the installation, so a second run installs nothing.
$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt "$$(grep -m1 '^torch' constraints.txt)"
	@touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) install -c constraints.txt -e ".[dev]"
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/aquamam demo

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 2 --dist worksteal

wheel-test: $(VENV)/.installed-dev
	.ci/wheel-test

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks

$(VENV)/.installed-docs: $(VENV)/.installed
	$(PIP) install -c constraints.txt -e ".[docs]"
	@touch $@

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

clean:
	rm -rf $(VENV) site build dist src/*.egg-info
