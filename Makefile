# Each target sets up what it needs in a virtual environment of its own; a second run installs
# nothing. With VENV= (empty) the interpreter PYTHON is used as it is and nothing is installed.
PYTHON ?= python3
VENV ?= .venv

# The vendors and versions of check-headers, and the versions of test-package; empty for all.
VENDORS ?=
VERSIONS ?=

# The extra that fits the NVIDIA driver: CUDA 13 asks for driver 580, CUDA 12 for 525.
DRIVER = { nvidia-smi --query-gpu=driver_version --format=csv,noheader \
	|| cat /proc/driver/nvidia/version; } 2>/dev/null \
	| grep -oE '[0-9]{3,}\.[0-9]+' | head -n 1 | cut -d. -f1
CUDA_EXTRA ?= $(shell driver=$$($(DRIVER)); \
	if [ "$${driver:-0}" -ge 580 ]; then echo cuda13; \
	elif [ "$${driver:-0}" -ge 525 ]; then echo cuda12; fi)

# Not empty: `make test` and its like install fixed versions, see below.
LOCKED ?=

# Factor by which the stress tests exceed an ordinary run; 0 for every point.
STRESS ?= 0

# Without a driver the tests still load the real libcudnn, whose descriptors need no GPU. The version
# is one that makes them without a GPU: 9.28 tries to load its engines for tensors of the graph API,
# and fails.
LIBCUDNN ?= $(if $(CUDA_EXTRA),,$(if $(filter Linux,$(shell uname -s)),nvidia-cudnn-cu13==9.19.*))

# Number of processes of test-gpu that share the device; 0 for a single one.
GPU_TESTS ?= 8

# The requirement that test-jax installs; pyproject.toml has the oldest version.
JAX ?= jax

# The requirement that test-torch installs; pyproject.toml has the oldest version.
TORCH ?= torch

ifeq ($(strip $(VENV)),)
  run := PYTHONPATH="src$${PYTHONPATH:+:$$PYTHONPATH}" $(PYTHON)
else
  run := $(VENV)/bin/python
  bench := $(VENV)/.installed-bench
  demo := $(VENV)/.installed-demo
  dev := $(VENV)/.installed-dev
  docs := $(VENV)/.installed-docs
endif
pip := $(VENV)/bin/python -m pip --disable-pip-version-check --quiet

comma := ,

.PHONY: help demo info test test-jax .test-jax test-torch .test-torch test-platforms stress test-gpu test-gpu-memcheck stress-gpu test-vulkan-record test-miopen test-miopen-record test-package test-docs mutate hash-records release lock lint type bindings check-bindings check-headers cuda-check docs .docs bench clean

help: ## Show the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "  %-18s %s\n", $$1, $$2}'

demo: $(demo) ## Train a character-level LSTM on the best backend present
	$(run) -m dnnffi demo

info: $(demo) ## Show which libraries and devices are found, and which are missing
	$(run) -m dnnffi info

test: $(dev) ## Run the tests that need no GPU
	$(run) -m pytest -n 2 -m "not gpu and not gfx1100 and not browser" tests $(PYTEST_ARGS)

test-jax: ## Run the tests of dnnffi.jax with JAX for the CPU, in an environment of its own (JAX=jax==0.10.1)
	@$(MAKE) --no-print-directory VENV=$(VENV:%=%-jax) CUDA_EXTRA= JAX='$(JAX)' .test-jax

.test-jax: $(dev)
	@$(if $(strip $(VENV)),$(pip) install '$(JAX)' flatbuffers equinox flax keras optax)
	$(run) -m pytest -n 2 tests/xla tests/docs/test_examples.py \
		tests/examples/test_jax_data_parallel.py tests/examples/test_recurrent_ppo.py \
		tests/bench/test_jax_models.py \
		tests/bench/test_stream_jax_models.py tests/bench/test_caller_jax_models.py $(PYTEST_ARGS)

# No libcudnn is installed: PyTorch brings its own.
test-torch: ## Run the tests of dnnffi.torch on the CPU, in an environment of its own (TORCH=torch==2.13.*)
	@$(MAKE) --no-print-directory VENV=$(VENV:%=%-torch) CUDA_EXTRA= LIBCUDNN= TORCH='$(TORCH)' \
		.test-torch

.test-torch: $(dev)
	@$(if $(strip $(VENV)),$(pip) install '$(TORCH)')
	$(run) -m pytest -n 2 tests/test_torch.py tests/test_torch_modules.py tests/test_torch_resets.py \
		tests/simulated/test_torch.py tests/backends/own/recurrent/test_torch.py \
		tests/formats/test_torch_file.py tests/formats/test_models.py \
		tests/bench/test_torch_models.py tests/bench/test_image_models.py \
		tests/bench/test_stream_torch_models.py tests/bench/test_stream_torch_image_models.py \
		tests/bench/test_caller_torch_models.py \
		tests/cli/test_bench.py tests/cli/test_machine.py \
		tests/docs/test_examples.py::test_with_torch $(PYTEST_ARGS)

# The tests that need none of the C libraries built for the tests, which Linux's loader loads.
PLATFORM_TESTS = tests/spec tests/formats tests/execution tests/device tests/reference tests/rnn \
	tests/cli $(addprefix tests/backends/vulkan/test_,copies.py native.py packed.py) \
	$(filter-out tests/test_mutation.py tests/test_torch%,$(wildcard tests/test_*.py))
ABSENT = compiler headers libcudnn libcublasLt libnvrtc

test-platforms: $(dev) ## Run tests that need no GPU on a simulated Windows and macOS
	for platform in win32 darwin; do \
		export SIMULATED_PLATFORM=$$platform; \
		PYTHONPATH="tests/other_platforms$${PYTHONPATH:+:$$PYTHONPATH}"; export PYTHONPATH; \
		$(run) -m pytest -p simulated_platform --capture=sys -m "not gpu and not gfx1100" \
			$(ABSENT:%=--without %) $(PLATFORM_TESTS) $(PYTEST_ARGS) || exit; \
	done

stress: $(dev) ## Run tests/stress at every point and on many seeds (STRESS=10 is ten times the usual)
	DNNFFI_STRESS=$(STRESS) $(run) -m pytest -n 2 tests/stress $(PYTEST_ARGS)

# By default NumPy gives each process as many threads as there are cores.
test-gpu: $(dev) ## Run the tests on the GPU and write docs/verification/gpu.json
	OMP_NUM_THREADS=2 $(run) -m pytest -n $(GPU_TESTS) --dist worksteal -m gpu tests/gpu tests/docs \
		-p no:benchmark --record $(PYTEST_ARGS)

test-gpu-memcheck: $(dev) ## Run GPU tests under compute-sanitizer and write memcheck.json
	$(run) tests/gpu/memcheck.py $(PYTEST_ARGS)

stress-gpu: $(bench) ## Launch dnnffi's recurrent kernels a million times on the GPU and write own_stress.json
	$(run) benchmarks/own_stress.py --json docs/verification/own_stress.json

test-vulkan-record: $(dev) ## Run the tests of the Vulkan backend and write docs/verification/vulkan.json
	$(run) -m pytest tests/backends/vulkan --record $(PYTEST_ARGS)

test-miopen: ## Run the real libMIOpen on an emulated gfx1100 (Linux, root, debootstrap)
	$(PYTHON) simulators/gfx1100/run.py --may-skip \
		python3 -m pytest -n 2 -p no:cacheprovider -m "not gpu" tests/gfx1100 tests/backends/miopen \
		$(PYTEST_ARGS)

test-miopen-record: PYTEST_ARGS += --record
test-miopen-record: test-miopen ## Run test-miopen and write docs/verification/miopen.json

test-package: $(dev) ## Build wheel and sdist, and use both in empty environments (VERSIONS="3.12 3.14")
	$(run) tests/package/check.py $(VERSIONS)

mutate: $(dev) ## Change the code in single places and see whether the tests notice
	$(run) tests/mutation.py $(MUTATE_ARGS)

hash-records: $(dev) ## Write the hashes of the package's parts into records that have a commit
	$(run) release/hash_records.py

release: $(dev) ## Build the archives of a release, check them, and print what a person has to do
	$(run) release/release.py

lock: ## Pin the packages of continuous integration and their hashes (.ci/requirements.txt)
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip --quiet install pip-tools
	CUSTOM_COMPILE_COMMAND="make lock" build/lock/bin/pip-compile --quiet --upgrade \
		--generate-hashes --strip-extras --allow-unsafe --no-emit-index-url --no-emit-find-links \
		--extra dev --extra demo --output-file .ci/requirements.txt pyproject.toml

lint: $(dev) ## Check style, format, sentences and which package imports which
	$(run) -m ruff check
	$(run) -m ruff format --check
	$(run) tests/prose.py
	$(run) -c 'from importlinter.cli import lint_imports_command as lint; lint()' --no-logo

type: $(dev) ## Check the types of src, and those that a user's code sees
	for platform in linux win32 darwin; do $(run) -m mypy src --platform $$platform || exit; done
	MYPYPATH=src:tests/typing/stubs $(run) -m mypy tests/typing

bindings: $(dev) ## Generate the cffi modules from the C text
	$(run) bindings/generate.py

check-bindings: $(dev) ## Fail if the generated cffi modules differ from those of the C text
	$(run) bindings/generate.py --check

check-headers: $(dev) ## Compile the C text against the vendors' headers (VENDORS=, VERSIONS="9.19 newest")
	$(run) bindings/check_headers.py $(addprefix --vendor ,$(VENDORS)) $(addprefix --version ,$(VERSIONS))

# cuda-check installs its own tools, since registers depend on NVRTC's version; with VENV= (empty) it
# uses those that are found.
cuda_tools := build/cuda
ifneq ($(strip $(VENV)),)
  cuda_installed := $(cuda_tools)/.installed
  cuda_path := $(CURDIR)/$(cuda_tools)/clang_format/data/bin:$(CURDIR)/$(cuda_tools)/nvidia/cu13/bin
  with_cuda_tools := PATH="$(cuda_path):$$PATH" \
	DNNFFI_NVRTC_LIBRARY=$(CURDIR)/$(cuda_tools)/nvidia/cu13/lib/libnvrtc.so.13
  with_oldest_nvrtc := DNNFFI_NVRTC_LIBRARY=$(CURDIR)/$(cuda_tools)/nvidia/cuda_nvrtc/lib/libnvrtc.so.12
endif
CUDA_FILES = $(shell find src/dnnffi/backends/own -name '*.cu' -o -name '*.cuh')

cuda-check: $(dev) $(cuda_installed) ## Compile dnnffi's kernels without a GPU; compare registers with a record, find early waits
	$(with_cuda_tools) clang-format --dry-run --Werror $(CUDA_FILES)
	$(with_cuda_tools) $(run) tests/cuda_check.py $(CUDA_CHECK_ARGS)
	$(with_oldest_nvrtc) $(run) tests/cuda_check.py --compile-only --architecture sm_90
	$(with_cuda_tools) $(run) tests/early_waits.py

$(cuda_tools)/.installed: $(dev) .ci/cuda.txt
	@echo "Installing .ci/cuda.txt into $(cuda_tools)"
	@rm -rf $(cuda_tools)
	@$(pip) install --require-hashes --no-deps --target $(cuda_tools) --requirement .ci/cuda.txt
	@touch $@

# The pages import JAX, which must not be in a process that forks; hence a separate environment.
docs: ## Build the documentation, warnings as errors
	@$(MAKE) --no-print-directory VENV=$(VENV:%=%-docs) CUDA_EXTRA= .docs

.docs: $(docs)
	$(run) -m sphinx -W --keep-going --fresh-env -b html docs docs/_build

test-docs: docs $(dev) ## Look at the built documentation with a headless Chromium
	$(run) -m pytest -m browser tests/docs/test_browser.py $(PYTEST_ARGS)

bench: $(bench) ## Measure the host cost of a call, and networks compared with PyTorch
	$(run) benchmarks/call_overhead.py --json docs/verification/call_overhead.json
	$(run) benchmarks/first_call.py --json docs/verification/first_call.json
	$(run) benchmarks/conv.py --json docs/verification/bench_conv.json
	$(run) benchmarks/conv.py --untuned --json docs/verification/bench_depthwise.json
	$(run) -m dnnffi bench rnn --device gpu --shapes performance,fastrnns \
		--json docs/verification/bench_rnn.json $(BENCH_ARGS)
	$(run) -m dnnffi bench rnn --device gpu --shapes own,random \
		--json docs/verification/bench_own.json $(BENCH_ARGS)
	$(run) -m dnnffi bench stream --device gpu --shapes everyday,random \
		--json docs/verification/stream.json
	$(run) -m dnnffi bench stream --conv --device gpu --json docs/verification/stream_conv.json
	$(run) -m dnnffi bench stream --resets --device gpu --peers torch,jax \
		--json docs/verification/stream_resets.json
	$(run) -m dnnffi bench callers --device gpu --json docs/verification/callers.json
	$(run) benchmarks/device_lengths.py --json docs/verification/device_lengths.json
	$(run) benchmarks/own_steps.py --json docs/verification/own_steps.json
	$(run) benchmarks/own_costs.py --json docs/verification/own_costs.json
	$(run) benchmarks/own_costs.py --fit docs/verification/own_costs.json
	$(run) benchmarks/own_costs.py --json docs/verification/own_costs.json --add --each 0
	$(run) benchmarks/own_costs.py --fit docs/verification/own_costs.json
	$(run) -m dnnffi bench cnn --device gpu --shapes imagenet --rounds 5 --warm-up 10 \
		--json docs/verification/bench_cnn.json
	$(run) benchmarks/voice_activity.py --device gpu \
		--json docs/verification/voice_activity_gpu.json  # needs silero-vad, see the example

clean: ## Remove the virtual environment and everything built
	rm -rf .venv .venv-docs .venv-jax .venv-torch build dist docs/_build demo-output
	rm -rf .import_linter_cache .mypy_cache .pytest_cache .ruff_cache .hypothesis src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# If the system's Python comes without ensurepip, its pip installs pip into the new environment.
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make PYTHON=...")'
	@echo "Making $(VENV)"
	@if $(PYTHON) -c 'import ensurepip' 2>/dev/null; then $(PYTHON) -m venv $(VENV); else \
		$(PYTHON) -m venv --without-pip $(VENV) \
		&& $(PYTHON) -m pip --python $(VENV)/bin/python --quiet install pip; fi
	@touch $@

# With LOCKED=1, the development packages are those of .ci/requirements.txt, checked by hash.
ifneq ($(LOCKED),)
$(VENV)/.installed-dev: $(VENV)/.made pyproject.toml .ci/requirements.txt
	@echo "Installing .ci/requirements.txt and dnnffi into $(VENV)"
	@$(pip) install --require-hashes --requirement .ci/requirements.txt
	@$(pip) install --no-deps --no-build-isolation --editable .
	@$(if $(LIBCUDNN),$(pip) install '$(LIBCUDNN)')
	@touch $@
endif

# The extra of that name in pyproject.toml, and the one for the GPU if the driver has one.
extras = $(if $(filter dev,$*),dev$(comma)demo,$*)$(addprefix $(comma),$(CUDA_EXTRA))
$(VENV)/.installed-%: $(VENV)/.made pyproject.toml
	@echo "Installing dnnffi[$(extras)] into $(VENV)"
	@$(pip) install --editable '.[$(extras)]'
	@$(if $(filter dev,$*),$(if $(LIBCUDNN),$(pip) install '$(LIBCUDNN)'))
	@touch $@
