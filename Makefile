# Every target is what continuous integration runs. `make help` lists them.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
SITE_READY := .venv/.ready-site
BENCH_READY := .venv/.ready-bench
# With NLM_CHECKPOINT set, it is the copy of the book on the reader's own model that is executed and built.
BOOK := $(if $(NLM_CHECKPOINT),_build/own-book,.)
SITE := $(if $(NLM_CHECKPOINT),_build/own-book/)_build/html

.DEFAULT_GOAL := help
.PHONY: help setup book notebooks test lint check-site generate train lab bench bench-growth clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "nlm needs Python 3.11 or newer; name one: make PYTHON=python3.11 ...")'
	@echo "Installing into .venv: some minutes, about 2 GB."
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@$(BIN)/python -c 'import matplotlib.font_manager'  # builds its cache now: the first notebook would print that it does
	@touch $(READY)

setup: $(READY)  ## make .venv with everything that is needed (the other targets do it too)

book: setup  ## build the site, strictly, into _build/html
	$(BIN)/jupyter-book build $(BOOK) -n -W --keep-going
	@echo "The book is ready: open $(SITE)/index.html in a browser."

notebooks: setup  ## execute the notebooks anew; with NLM_CHECKPOINT=PATH a copy of the book, on that checkpoint
	$(BIN)/python scripts/notebooks.py

test: setup lint  ## lint, unit tests and notebooks
	@# Not by pytest's option: with it nbval measures inside the notebooks' kernels too, which slows their start to minutes.
	$(BIN)/python -m coverage run -m pytest --nbval
	$(BIN)/python -m coverage report --skip-covered

lint: setup  ## check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

$(SITE_READY): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[site]'
	@touch $(SITE_READY)

check-site: book $(SITE_READY)  ## check the site in a browser (Chromium or Chrome), and a notebook in Jupyter Lab
	$(BIN)/python scripts/check_site.py --site $(SITE)
	@# And the check itself, on planted defects: without a browser make test leaves that out.
	$(BIN)/python -m pytest -q tests/test_check_site.py

generate: setup  ## write a story with the shipped model
	@$(BIN)/nlm generate --prompt "Once upon a time" --stop "<|endoftext|>" --max-new-tokens 400

train: setup  ## train a tiny model on the stories in data/ (a demonstration of minutes)
	bash scripts/tiny_demo.sh

lab: setup  ## open the book in Jupyter Lab
	$(BIN)/jupyter lab book

$(BENCH_READY): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[bench]'
	@touch $(BENCH_READY)

bench: $(BENCH_READY)  ## measure speed and memory beside transformers and transformer-lens (the better part of an hour)
	$(BIN)/python -m benchmarks.run

bench-growth: $(BENCH_READY)  ## measure how training and data prepare grow (needs 4 GB of disk for a while)
	$(BIN)/python -m benchmarks.run growth

clean:  ## remove the built site and caches; keeps .venv, data and runs
	rm -rf _build .pytest_cache .ruff_cache .hypothesis .coverage
	find nlm_core tests benchmarks -name __pycache__ -type d -exec rm -rf {} +
