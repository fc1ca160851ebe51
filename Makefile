# Every target does its own set-up in .venv; only a Python >= 3.11 with venv is needed.
# Another interpreter: make PYTHON=/path/to/python3 demo

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	"$$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 \
	&& { echo "$$p"; break; }; done)
BIN := .venv/bin

.PHONY: operators demo test slow oldest torch jax jax-oldest onnx wheel lemmas lint types layers sizes check bench clean
.DEFAULT_GOAL := check

.venv/.python:
	@test -n "$(PYTHON)" || { echo "make: needs a Python >= 3.11 with venv; set PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv .venv
	@touch $@

.venv/.core: .venv/.python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

.venv/.dev: .venv/.core
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	$(BIN)/python -m pip check
	@touch $@

demo: .venv/.core        ## verify the example pair and show two refutations
	$(BIN)/python examples/neuron_llama/demo.py

test: .venv/.dev         ## all tests but the slow ones
	$(BIN)/python -m pytest -m "not slow"

slow: .venv/.dev         ## the tests on large corpora
	$(BIN)/python -m pytest -m slow

.venv-oldest/.done: oldest.txt pyproject.toml
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --constraint oldest.txt --editable . pytest hypothesis
	@touch $@

oldest: .venv-oldest/.done  ## the readers and the command with the lowest supported versions
	.venv-oldest/bin/python -m pytest -m "not slow" tests/frontends tests/ir tests/tools

.venv-torch/.done: torch.txt pyproject.toml
	$(PYTHON) -m venv .venv-torch
	.venv-torch/bin/python -m pip install --quiet --requirement torch.txt --editable ".[torch,megatron]" pytest hypothesis
	.venv-torch/bin/python -m pip check
	@touch $@

torch: .venv-torch/.done  ## the tests that need PyTorch, transformers or Megatron-Core
	.venv-torch/bin/python -m pytest tests/frontends/test_fx_*.py tests/test_torch_docs.py tests/test_tutorial.py \
		tests/examples

JAX_TESTS := tests/bugs tests/frontends/test_jaxpr_*.py \
	tests/frontends/test_xla_*.py tests/frontends/test_stablehlo.py tests/solver/test_xla*.py \
	tests/test_jax_docs.py tests/examples/test_llama_jax.py

.venv-jax/.done: jax.txt pyproject.toml
	$(PYTHON) -m venv .venv-jax
	.venv-jax/bin/python -m pip install --quiet --requirement jax.txt --editable ".[jax]" pytest hypothesis
	.venv-jax/bin/python -m pip check
	@touch $@

jax: .venv-jax/.done     ## the tests that need JAX
	.venv-jax/bin/python -m pytest tests/frontends/test_hlo_jax.py $(JAX_TESTS)

.venv-jax-oldest/.done: jax-oldest.txt pyproject.toml
	$(PYTHON) -m venv .venv-jax-oldest
	.venv-jax-oldest/bin/python -m pip install --quiet --requirement jax-oldest.txt --editable . pytest hypothesis
	@touch $@

jax-oldest: .venv-jax-oldest/.done  ## the same with the oldest supported JAX, but for the HLO that it dumps
	.venv-jax-oldest/bin/python -m pytest -m "not slow" $(JAX_TESTS)

.venv-onnx/.done: onnx.txt pyproject.toml
	$(PYTHON) -m venv .venv-onnx
	.venv-onnx/bin/python -m pip install --quiet --requirement onnx.txt \
		--editable ".[jax,lemma-check,onnx,torch]" pytest hypothesis
	.venv-onnx/bin/python -m pip check
	@touch $@

onnx: .venv-onnx/.done   ## the tests that need ONNX, and those of programs of several frameworks
	.venv-onnx/bin/python -m pytest tests/frontends/test_onnx_*.py tests/test_onnx_docs.py \
		tests/test_cross_framework_docs.py tests/examples/test_cross_framework.py

operators: .venv-onnx/.done  ## docs/operators.md, from the tables of the frontends and from what their tests read
	.venv-onnx/bin/python -m pytest -m "not slow" -p tests.operator_evidence tests/frontends
	$(BIN)/python -m shardproof.tools.operator_page

wheel: .venv/.dev        ## the wheel, in an environment with the core dependencies only
	rm -rf build .venv-wheel
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir build/wheel .
	$(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/python -m pip install --quiet build/wheel/*.whl
	.venv-wheel/bin/python -m pip check
	.venv-wheel/bin/python tests/check_wheel.py

lemmas: .venv/.dev       ## check every lemma of the library, with proofs
	$(BIN)/shardproof lemma check

lint: .venv/.dev
	$(BIN)/ruff check .

types: .venv/.dev
	$(BIN)/mypy
	$(BIN)/mypy benchmarks examples/neuron_llama examples/decode examples/neuron_vs_torch examples/new_frontend
	$(BIN)/mypy examples/llama_jax
	$(BIN)/mypy examples/cross_framework

layers: .venv/.dev
	$(BIN)/python -m pytest tests/test_layers.py

sizes: .venv/.core
	$(BIN)/python -m shardproof.tools.sizes

check: lint types test layers sizes

JAX_BENCHMARKS := benchmarks/bugs.py benchmarks/xla.py benchmarks/llama_405b.py
ONNX_BENCHMARKS := benchmarks/cross_framework.py

bench: .venv/.core .venv-jax/.done .venv-onnx/.done
	@for script in $(filter-out $(JAX_BENCHMARKS) $(ONNX_BENCHMARKS) benchmarks/xla_%,$(wildcard benchmarks/*.py)); do \
		echo "== $$script"; $(BIN)/python "$$script" || exit 1; done
	@for script in $(JAX_BENCHMARKS); do echo "== $$script"; .venv-jax/bin/python "$$script" || exit 1; done
	@for script in $(ONNX_BENCHMARKS); do echo "== $$script"; .venv-onnx/bin/python "$$script" || exit 1; done

clean:
	rm -rf .venv .venv-oldest .venv-torch .venv-jax .venv-jax-oldest .venv-onnx .venv-wheel build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
