# Everything a clone needs: `make demo` and `make test` set up .venv by themselves.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO := demo_output

.PHONY: demo test lint bench clean

$(READY): pyproject.toml plugins/pytorch/pyproject.toml plugins/mindspore/pyproject.toml plugins/verl/pyproject.toml constraints-dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints-dev.txt --group dev \
		--editable . --editable plugins/pytorch --editable plugins/mindspore --editable plugins/verl
	touch $@

# Train a small Llama twice, the second time with a fault planted deep inside, and find it.
demo: $(READY)
	rm -rf $(DEMO)
	$(BIN)/python examples/demo/train.py --dump $(DEMO)/golden
	$(BIN)/python examples/demo/train.py --dump $(DEMO)/target --fault
	$(BIN)/msprobe compare -tp $(DEMO)/target/step0 -gp $(DEMO)/golden/step0 -o $(DEMO)/result; test $$? -eq 1

test: lint
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --quiet --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

bench: $(READY)
	$(BIN)/python bench/startup.py
	$(BIN)/python bench/compare_scale.py
	$(BIN)/python bench/run_scale.py
	$(BIN)/python bench/tensor_scale.py
	$(BIN)/python bench/store_scale.py
	$(BIN)/python bench/capture_cost.py
	$(BIN)/python bench/healthy_pairs.py

clean:
	rm -rf $(VENV) $(DEMO) .pytest_cache .ruff_cache .hypothesis
