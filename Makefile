# Every target is what continuous integration runs. `make help` lists them.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help setup book test lint generate train lab clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "nlm needs Python 3.11 or newer; name one: make PYTHON=python3.11 ...")'
	@echo "Installing into .venv: some minutes, about 2 GB."
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $(READY)

setup: $(READY)  ## make .venv with everything that is needed (the other targets do it too)

book: setup  ## build the site, strictly, into _build/html
	$(BIN)/jupyter-book build . -n -W --keep-going
	@echo "The book is ready: open _build/html/index.html in a browser."

test: setup lint  ## lint, unit tests and notebooks
	$(BIN)/python -m pytest --nbval --cov --cov-report=term:skip-covered

lint: setup  ## check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

generate: setup  ## write a story with the shipped model
	@$(BIN)/nlm generate --prompt "Once upon a time" --stop "<|endoftext|>" --max-new-tokens 400

train: setup  ## train a tiny model on the stories in data/ (a demonstration of minutes)
	bash scripts/tiny_demo.sh

lab: setup  ## open the book in Jupyter Lab
	$(BIN)/jupyter lab book

clean:  ## remove the built site and caches; keeps .venv, data and runs
	rm -rf _build .pytest_cache .ruff_cache .hypothesis .coverage
	find nlm_core tests -name __pycache__ -type d -exec rm -rf {} +
