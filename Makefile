# All tasks of a developer. Targets create the environments that they need: .venv, .venv-mindspore, .venv-verl, .venv-jax.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# MindSpore needs NumPy below 2, so it has a separate environment.
MS_VENV := .venv-mindspore
MS_BIN := $(MS_VENV)/bin
MS_READY := $(MS_VENV)/.ready
# verl needs an older version of transformers than the tests of PyTorch.
VERL_VENV := .venv-verl
VERL_BIN := $(VERL_VENV)/bin
VERL_READY := $(VERL_VENV)/.ready
# The template of a plugin for JAX; other tests do without.
JAX_VENV := .venv-jax
JAX_BIN := $(JAX_VENV)/bin
JAX_READY := $(JAX_VENV)/.ready
# The core alone, with the oldest allowed releases of its libraries.
LOWEST_VENV := .venv-lowest
LOWEST_BIN := $(LOWEST_VENV)/bin
LOWEST_READY := $(LOWEST_VENV)/.ready
# What builds the documentation site; it imports nothing of msprobe.
DOCS_VENV := .venv-docs
DOCS_READY := $(DOCS_VENV)/.ready
DEMO := demo_output
PAIR := examples/llama_pair/train.py --level mix
PLUGINS := plugins/pytorch plugins/mindspore plugins/verl
PROJECTS := pyproject.toml hatch_build.py msprobe_core/native/kernels.c $(PLUGINS:%=%/pyproject.toml)
# Tests of arithmetic and of arrays, which also run with MindSpore's older NumPy. Tests that start programs, load plugins
# or handle tables and text hardly depend on NumPy, and compiled kernels receive addresses only: these run in test-main,
# and in test-nightly with the older NumPy too.
ABOUT_NUMPY := checksum compat_verdicts confirm custom_metrics hash input_replay layouts manual_save mixed_dumps \
	noise perturbation post_processing recorder rounding_effects serving shards sketch sketch_files \
	tensor_comparison tensor_files tensor_folders tensor_metrics tensor_sources updates values
NUMPY_1_TESTS := tests/contract/test_numpy.py $(ABOUT_NUMPY:%=tests/unit/test_%.py)
# The tests that call each of the core's libraries most: NumPy, polars, pyarrow, msgspec, PyYAML, openpyxl, pluggy, click, rich, isal.
ABOUT_LIBRARIES := values tensor_files tensor_folders tensor_metrics checksum \
	formatting verdict tables cross_framework locate order view arrow convert \
	reader untrusted config layouts limits live_config hostile_tables report plugins cli progress bounds stored_rows
LOWEST_TESTS := tests/contract/test_numpy.py $(ABOUT_LIBRARIES:%=tests/unit/test_%.py)
MS_TESTS := tests/contract/test_mindspore.py tests/e2e/mindspore
VERL_TESTS := tests/e2e/verl
# Show errors of MindSpore's compiler (level 3); lower levels log every step of it.
export GLOG_v ?= 3
# Let Python keep bytecode even if the machine's environment forbids it: tests start hundreds of processes, each of which
# would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

# Number of processes that run tests. Each gets whole files, so that fixtures shared by a file's tests are made once; the
# long files of tests/e2e are started first, so that the short ones of tests/unit keep both processes busy to the end.
# PyTorch uses one thread in each, because more would compete for the cores.
WORKERS ?= 2
QUICK := -m pytest -m "not slow and not nightly"
# A share of what test-slow runs, such as 2/4: of every four tests the second. All shares together are all tests.
SHARE := 1/1
BOTH := -m pytest -m "not nightly" --share=$(SHARE)
SLOW := -m pytest -m "slow and not nightly" --share=$(SHARE)
NIGHTLY := -m pytest -m nightly
SHARED := --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder
test-numpy-1 test-lowest test-mindspore test-verl test-main slow-mindspore slow-jax slow-verl verl-comparisons slow-main test-nightly: \
	export OMP_NUM_THREADS = 1

# Folders whose prose must be plain English, and words that it must not contain; phrases are in tests/unit/test_prose.py.
PROSE := tests/data/prose

# Another release of PyTorch, and constraints that it needs.
TORCH ?= 2.6.0
TORCH_WITH ?= "numpy<2.3" "transformers<5"
TORCH_VENV = .venv-torch-$(TORCH)
TORCH_TESTS := tests/contract/test_pytorch.py tests/e2e --ignore=tests/e2e/mindspore --ignore=tests/e2e/trainer \
	--ignore=tests/e2e/verl --ignore=tests/e2e/test_faults_bench.py --ignore=tests/e2e/test_bench_check.py

# Duration of fuzzers in seconds, and their seed; the same seed repeats a run.
SECONDS ?= 600
SEED ?= $(shell date +%s)

.PHONY: environments release changelog fuzz test-lowest demo demo-check demo-checkpoint demo-cross demo-monitor demo-verl findings reference standards page site test beside test-mindspore test-numpy-1 test-verl test-main test-slow \
	slow-beside slow-mindspore slow-jax slow-verl verl-comparisons slow-main test-nightly test-torch \
	lint bench clean

# pip would compile all modules of all libraries, which takes longer than all else that it does; Python compiles what is
# imported.
PIP_INSTALL := -m pip install --quiet --no-compile

# $(call install,environment,dependency group,more constraints)
define install
	$(PYTHON) -m venv $(1)
	$(1)/bin/python $(PIP_INSTALL) --upgrade pip
	$(1)/bin/python $(PIP_INSTALL) --constraint constraints-dev.txt --constraint $(3) --group $(2) \
		--editable . $(PLUGINS:%=--editable %)
	touch $(1)/.ready
endef

$(READY): $(PROJECTS) constraints-dev.txt constraints-pytorch.txt
	$(call install,$(VENV),dev,constraints-pytorch.txt)

$(MS_READY): $(PROJECTS) constraints-dev.txt constraints-mindspore.txt
	$(call install,$(MS_VENV),mindspore,constraints-mindspore.txt)

$(VERL_READY): $(PROJECTS) constraints-dev.txt constraints-verl.txt
	$(call install,$(VERL_VENV),verl,constraints-verl.txt)
	rm $@
	$(VERL_BIN)/python $(PIP_INSTALL) --constraint constraints-verl.txt --no-deps verl
	touch $@

$(JAX_READY): $(PROJECTS) constraints-dev.txt constraints-jax.txt
	$(call install,$(JAX_VENV),jax,constraints-jax.txt)

$(LOWEST_READY): $(PROJECTS) constraints-lowest.txt
	$(PYTHON) -m venv $(LOWEST_VENV)
	$(LOWEST_BIN)/python $(PIP_INSTALL) --constraint constraints-lowest.txt --editable '.[arrow]' \
		build hatchling hypothesis pytest pytest-xdist safetensors
	touch $@

# All of them; with --jobs, several at a time. The largest are begun first.
environments: $(MS_READY) $(READY) $(VERL_READY) $(JAX_READY) $(LOWEST_READY) $(DOCS_READY)

# Train a small Llama twice, the second time with a fault planted deep inside, locate it, and write a page that shows it.
# Then train it with another base of the rotary embedding: the manifests of the runs name the setting that explains the fault.
demo: $(READY)
	rm -rf $(DEMO)
	$(BIN)/python examples/demo/train.py --dump $(DEMO)/golden --calibrate
	$(BIN)/python examples/demo/train.py --dump $(DEMO)/target --fault
	$(BIN)/msprobe compare -tp $(DEMO)/target/step0 -gp $(DEMO)/golden/step0 -o $(DEMO)/result; test $$? -eq 1
	$(BIN)/msprobe calibrate $(DEMO)/golden
	$(BIN)/msprobe locate $(DEMO)/target $(DEMO)/golden -o $(DEMO)/result; test $$? -eq 1
	$(BIN)/python examples/demo/train.py --dump $(DEMO)/other --rope-base 500000
	$(BIN)/msprobe locate $(DEMO)/other $(DEMO)/golden -o $(DEMO)/other_result; test $$? -eq 1
	$(BIN)/msprobe view $(DEMO)/result -o $(DEMO)/result/view.html

# Compare the same small Llama in PyTorch and in MindSpore: the two agree without a fault, and a planted fault is located.
demo-cross: $(MS_READY)
	rm -rf $(DEMO)/cross
	$(MS_BIN)/python $(PAIR) --framework torch --dump $(DEMO)/cross/golden
	$(MS_BIN)/python $(PAIR) --framework mindspore --dump $(DEMO)/cross/healthy
	$(MS_BIN)/python $(PAIR) --framework mindspore --inject eps --dump $(DEMO)/cross/target
	$(MS_BIN)/msprobe compare -tp $(DEMO)/cross/healthy/step0 -gp $(DEMO)/cross/golden/step0 -o $(DEMO)/cross/agree
	$(MS_BIN)/msprobe compare -tp $(DEMO)/cross/target/step0 -gp $(DEMO)/cross/golden/step0 -o $(DEMO)/cross/result; \
		test $$? -eq 1
	$(MS_BIN)/msprobe locate $(DEMO)/cross/healthy $(DEMO)/cross/golden -o $(DEMO)/cross/agree
	$(MS_BIN)/msprobe locate $(DEMO)/cross/target $(DEMO)/cross/golden -o $(DEMO)/cross/result; test $$? -eq 1

# Train a small GPT under the monitor: an alarm names a fault that stays from step 180 on, and has the next step recorded;
# that step is repeated without the fault, and the fault is located.
demo-monitor: $(READY)
	rm -rf $(DEMO)/monitor
	$(BIN)/python examples/monitor/train.py --output $(DEMO)/monitor
	$(BIN)/msprobe monitor analyze $(DEMO)/monitor/monitor_output; test $$? -eq 1
	$(BIN)/python examples/monitor/train.py --output $(DEMO)/monitor --repeat
	$(BIN)/msprobe locate $(DEMO)/monitor/monitor_output/alarm_dump $(DEMO)/monitor/golden \
		-o $(DEMO)/monitor/result; test $$? -eq 1
	$(BIN)/msprobe view $(DEMO)/monitor/result -o $(DEMO)/monitor/located.html
	$(BIN)/msprobe view $(DEMO)/monitor/monitor_output -o $(DEMO)/monitor/view.html

# Train a small Llama once with one call of one kernel wrong; it is found among all calls without a second run, and a
# script shows it in an environment that has PyTorch and no msprobe.
demo-check: CHECK = $(DEMO)/check
demo-check: $(READY)
	rm -rf $(CHECK)
	$(BIN)/python examples/check/record.py --dump $(CHECK)/dump
	$(BIN)/msprobe acc_check -api_info $(CHECK)/dump/step0/*/dump.json -o $(CHECK)/result; test $$? -eq 1
	$(BIN)/msprobe acc_check -api_info $(CHECK)/dump/step0/*/dump.json -o $(CHECK)/result \
		--script Functional.silu.4.forward; test $$? -eq 1
	$(PYTHON) -m venv --without-pip $(CHECK)/bare
	$(BIN)/python -c "import torch; print(torch.__path__[0].rpartition('/')[0])" > \
		$$($(CHECK)/bare/bin/python -c "import site; print(site.getsitepackages()[0])")/torch.pth
	cd $(CHECK) && ! bare/bin/python -c "import msprobe_core" 2> /dev/null
	cd $(CHECK)/result && ../bare/bin/python Functional.silu.4.forward.py; test $$? -eq 1
	$(BIN)/msprobe view $(CHECK)/result -o $(CHECK)/view.html

# Convert a small Llama to the layout of Megatron-LM: it is the same model. With the rows of one projection in another
# order it is not, and the tensor is named; a fingerprint of 400 bytes a tensor is enough to see it from another site.
demo-checkpoint: CHECKPOINT = $(DEMO)/checkpoint
demo-checkpoint: $(READY)
	rm -rf $(CHECKPOINT)
	$(BIN)/python examples/checkpoint/convert.py --output $(CHECKPOINT)
	$(BIN)/msprobe checkpoint inspect $(CHECKPOINT)/megatron
	$(BIN)/msprobe checkpoint compare $(CHECKPOINT)/megatron $(CHECKPOINT)/hf -o $(CHECKPOINT)/result
	$(BIN)/msprobe checkpoint compare $(CHECKPOINT)/megatron_bug $(CHECKPOINT)/hf -o $(CHECKPOINT)/result_bug; \
		test $$? -eq 1
	$(BIN)/msprobe checkpoint fingerprint $(CHECKPOINT)/hf -o $(CHECKPOINT)/hf.fingerprint.arrow
	$(BIN)/msprobe checkpoint fingerprint $(CHECKPOINT)/megatron -o $(CHECKPOINT)/megatron.fingerprint.arrow
	$(BIN)/msprobe checkpoint compare $(CHECKPOINT)/megatron.fingerprint.arrow $(CHECKPOINT)/hf.fingerprint.arrow
	$(BIN)/msprobe checkpoint compare $(CHECKPOINT)/megatron_bug $(CHECKPOINT)/hf.fingerprint.arrow; test $$? -eq 1

# Write docs/commands.md and docs/plugin_api.md from the help of commands and from what plugins import, and the tables of
# docs/configuration.md from the schema, and docs/errors.md; their texts are in tests/data/site.
reference: $(READY)
	$(BIN)/python tests/support/reference_pages.py

# Write docs/findings.md and docs/zh/findings.md, the list of all findings, from their templates.
findings: $(READY)
	$(BIN)/python tests/support/finding_list.py

# Write docs/standards.md and docs/zh/standards.md, the published standards of single calls, from
# msprobe_core/api_check/standards.yaml.
standards: $(READY)
	$(BIN)/python tests/support/standards_page.py

# Build the page of `msprobe view` from its source, with Node 20 or newer; commit the result. Users need neither of them.
page:
	cd view_page && npm ci --no-audit --no-fund --loglevel=error && npm run --silent build

$(DOCS_READY): pyproject.toml constraints-docs.txt
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python $(PIP_INSTALL) --upgrade pip
	$(DOCS_VENV)/bin/python $(PIP_INSTALL) --constraint constraints-docs.txt --group docs
	touch $@

# Build the documentation site in English and Chinese, with every warning an error; open site/index.html.
site: export NO_MKDOCS_2_WARNING = 1
site: $(DOCS_READY)
	$(DOCS_VENV)/bin/python -m mkdocs build --quiet --strict
	$(DOCS_VENV)/bin/python -m mkdocs build --quiet --strict --config-file mkdocs.zh.yml

# Run PPO with verl on CPUs, with a serving engine that does not update one parameter, and find that parameter.
demo-verl: $(VERL_READY)
	rm -rf $(DEMO)/verl
	mkdir -p $(DEMO)/verl
	sed 's|^out:.*|out: $(CURDIR)/$(DEMO)/verl/run|' examples/verl_cpu/record.yaml > $(DEMO)/verl/record.yaml
	$(VERL_BIN)/python examples/verl_cpu/train.py --work $(DEMO)/verl --record $(DEMO)/verl/record.yaml \
		--fault skip_layer > $(DEMO)/verl/training.log 2>&1 || (tail -40 $(DEMO)/verl/training.log; false)
	$(VERL_BIN)/msprobe verl compare logprob $(DEMO)/verl/run -o $(DEMO)/verl/result; test $$? -eq 1
	$(VERL_BIN)/msprobe verl compare weights $(DEMO)/verl/run -o $(DEMO)/verl/result; test $$? -eq 1
	$(VERL_BIN)/msprobe verl compare layers $(DEMO)/verl/run -o $(DEMO)/verl/result; test $$? -eq 1

# Run single-process suites in parallel, and show the output of each when it has ended.
test: $(READY) $(MS_READY) $(VERL_READY)
	$(MAKE) --no-print-directory --jobs=$(WORKERS) --output-sync=target beside
	$(MAKE) --no-print-directory test-main

beside: test-mindspore test-verl lint

# Without tests of RL comparisons, which run in verl's environment, among the slow ones.
test-main: $(READY)
	$(BIN)/python $(QUICK) $(SHARED) --ignore=tests/unit/verl

# Import first: without MindSpore its tests would be skipped, and nothing would fail. The tests run in one process and in
# order, so that later tests reuse what MindSpore has compiled.
test-mindspore: $(MS_READY)
	$(MS_BIN)/python -c "import mindspore"
	$(MS_BIN)/python $(QUICK) $(MS_TESTS)

# In another process than MindSpore's, whose operators leave the processor flushing subnormal numbers to zero.
test-numpy-1: $(MS_READY)
	$(MS_BIN)/python $(BOTH) $(NUMPY_1_TESTS)

# Import first, as above.
test-verl: $(VERL_READY)
	$(VERL_BIN)/python -c "import verl"
	$(VERL_BIN)/python $(QUICK) $(VERL_TESTS)

# Slow tests, and quick ones again with other releases of libraries: first the suites that run in a process of their own,
# side by side and the longest first, and then the one that is shared by all processes.
test-slow: $(READY) $(MS_READY) $(VERL_READY) $(JAX_READY) $(DOCS_READY) $(LOWEST_READY)
	$(MAKE) --no-print-directory --jobs=$(WORKERS) --output-sync=target slow-beside
	$(MAKE) --no-print-directory slow-main

slow-beside: slow-mindspore test-lowest slow-verl verl-comparisons test-numpy-1 slow-jax

slow-mindspore: $(MS_READY)
	$(MS_BIN)/python $(SLOW) $(MS_TESTS)

# Import first, as above.
slow-jax: $(JAX_READY)
	$(JAX_BIN)/python -c "import flax"
	$(JAX_BIN)/python $(SLOW) tests/e2e/jax

slow-verl: $(VERL_READY)
	$(VERL_BIN)/python $(SLOW) $(VERL_TESTS)

verl-comparisons: $(VERL_READY)
	$(VERL_BIN)/python $(BOTH) tests/unit/verl

slow-main: $(READY) $(DOCS_READY)
	$(BIN)/python -c "import trl"
	$(BIN)/python $(SLOW) $(SHARED) --ignore=tests/unit/verl

# Tests that take too long to run for each change.
test-nightly: $(MS_READY)
	$(MS_BIN)/python -c "import mindspore"
	$(MS_BIN)/python $(NIGHTLY) $(MS_TESTS)
	$(MS_BIN)/python $(QUICK) tests/contract/test_numpy.py tests/unit

# Feed damaged files to every reader. Files that cause defects are kept in fuzz_defects; tests run a short part of this.
fuzz: export OMP_NUM_THREADS = 1
fuzz: export POLARS_MAX_THREADS = 1
fuzz: export PYTHONPATH = $(CURDIR)/plugins/verl:$(CURDIR)/plugins/pytorch
fuzz: $(READY)
	cd tests && $(CURDIR)/$(BIN)/python -m fuzz --seconds $(SECONDS) --seed $(SEED) --keep $(CURDIR)/fuzz_defects

lint: $(READY) $(MS_READY)
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --quiet --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/pyright --pythonpath $(MS_BIN)/python plugins/mindspore
	grep -v '^#' $(PROSE)/rooms.txt | xargs $(BIN)/codespell --dictionary - --dictionary $(PROSE)/words.txt

# Test PyTorch with another release. Its environment takes several GB, so no other target includes this one.
# For PyTorch 2.1: make test-torch TORCH=2.1.2 TORCH_WITH='"numpy<2" "transformers<4.49"'
test-torch: export OMP_NUM_THREADS = 1
test-torch:
	test -d $(TORCH_VENV) || $(PYTHON) -m venv $(TORCH_VENV)
	$(TORCH_VENV)/bin/python -m pip install --quiet --upgrade pip
	grep -v '^torch=' constraints-dev.txt > $(TORCH_VENV)/constraints.txt
	$(TORCH_VENV)/bin/python -m pip install --quiet --constraint $(TORCH_VENV)/constraints.txt --group tests \
		torch==$(TORCH) $(TORCH_WITH) --editable . --editable plugins/pytorch
	$(TORCH_VENV)/bin/python $(QUICK) --all-variants $(SHARED) $(TORCH_TESTS)

# Test the core with the oldest releases of its libraries that pyproject.toml allows; .ci/nightly runs all unit tests.
test-lowest: $(LOWEST_READY)
	$(LOWEST_BIN)/python $(BOTH) $(LOWEST_TESTS)

# Build the packages of HEAD, bit for bit the same each time, with checksums and a bill of materials.
release: $(READY)
	rm -rf dist
	$(BIN)/python -m release.build --out dist

# Collect changelog.d into CHANGELOG.md: make changelog VERSION=0.1.0
changelog: $(READY)
	$(BIN)/python -m release.changelog $(VERSION)

bench: $(READY) $(MS_READY)
	$(BIN)/python bench/startup.py
	$(BIN)/python bench/compare_scale.py
	$(BIN)/python bench/run_scale.py
	$(BIN)/python bench/tensor_scale.py
	$(BIN)/python bench/store_scale.py
	$(BIN)/python bench/capture_cost.py
	$(MS_BIN)/python bench/mindspore_cost.py
	$(BIN)/python bench/healthy_pairs.py
	$(BIN)/python bench/view_scale.py

clean:
	rm -rf $(VENV) $(MS_VENV) $(VERL_VENV) $(JAX_VENV) $(DOCS_VENV) site .venv-torch-* .venv-lowest $(DEMO) .pytest_cache .ruff_cache .hypothesis
