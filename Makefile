# A front over the CMake presets. PRESET=dev make test, DEMO="--model micro" make demo.
PRESET ?= release
JOBS ?= $(shell nproc)
# Ranks wait for each other, and programs for their limits of time: more tests than cores keep the cores busy.
TEST_JOBS ?= $(shell expr \( $(JOBS) \* 3 + 1 \) / 2)
DEMO ?= --model tiny --ranks 4 --steps 20
PEERS ?= --growth 200
BUILD := build/$(PRESET)
GENERATOR := if command -v ninja >/dev/null; then export CMAKE_GENERATOR="$${CMAKE_GENERATOR-Ninja}"; fi

export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)

.DEFAULT_GOAL := build
.PHONY: build bench bench-setup clean configure cuda demo docs fuzz help lint python python-test sanitizers setup test \
  test-long test-setup

build: configure ## everything but the benchmarks
	@cmake --build --preset $(PRESET)

demo: configure ## trains a language model on 4 ranks under every plan and compares them
	@cmake --build --preset $(PRESET) --target zero_cli
	$(BUILD)/zero compare $(DEMO)

test: test-setup build sanitizers ## every test, of long matrices the rows in which every two values meet
	@ctest --preset $(PRESET) --parallel $(TEST_JOBS)

test-long: test-setup build sanitizers ## every test, every row and every repetition
	@ZERO_TEST_LONG=1 ctest --preset $(PRESET) --parallel $(TEST_JOBS) --build-config Long

fuzz: test-setup ## every parser of files against random inputs, ten minutes each
	@mkdir -p build; $(GENERATOR); cmake --preset fuzz >build/fuzz.log || { cat build/fuzz.log; exit 1; }
	@cmake --build --preset fuzz
	@ctest --preset fuzz --parallel $(JOBS) --build-config Long --tests-regex '\.long$$'

sanitizers:
	@$(GENERATOR); for sanitizer in asan tsan fuzz; do \
	  cmake --preset $$sanitizer >build/$$sanitizer.log || { cat build/$$sanitizer.log; exit 1; }; \
	  cmake --build --preset $$sanitizer || exit; done

bench: bench-setup configure ## kernels, collectives and training steps, each against its peers
	@cmake --build --preset $(PRESET) --target benches zero_cli
	@for source in bench/micro/*.cpp bench/tiers/*.cpp; do $(BUILD)/bench/$$(basename $$source .cpp) || exit; done
	@bench/tiers/cpu_update.py --program $(BUILD)/bench/cpu_update
	@bench/collectives/run.py --build $(BUILD) --json build/collectives.json
	@bench/checkpoints/run.py
	@bench/peers/run.py --ours $(BUILD)/bench/peers_ours --zero $(BUILD)/zero --json build/peers.json $(PEERS)
	@bench/plot.py build/peers.json

bench-setup:
	@scripts/setup.sh libopenmpi-dev

test-setup:
	@scripts/setup.sh --tests

lint: ## format, clang-tidy, layers, self-contained headers
	@$(MAKE) --no-print-directory configure PRESET=dev
	@scripts/lint.sh build/dev

# Against another LibTorch than the tests': that of CUDA.
cuda: ## builds everything against LibTorch for CUDA, which it fetches into build/; needs nvcc
	@scripts/setup.sh
	@scripts/setup.sh --cuda
	@export PATH="$(CURDIR)/build/cuda-venv/bin:$$PATH"; $(GENERATOR); \
	  cmake -S . -B build/cuda -DCMAKE_BUILD_TYPE=Release -DCMAKE_UNITY_BUILD=ON -DCMAKE_PREFIX_PATH="$$(cat build/cuda.prefix)" >build/cuda.log || { cat build/cuda.log; exit 1; }; \
	  cmake --build build/cuda
	@build/cuda/tests/unit_tests --gtest_brief=1 --gtest_filter='GridKernels.*'
	@build/cuda/zero compare --model micro --ranks 2 --steps 4

# As anybody installs it, with a build folder that stays, and compiled as the library is, which ccache then knows.
python: setup ## the package zero for Python, into build/python/package
	@scripts/setup.sh --python
	@export PYTHONPATH="$(CURDIR)/build/python-tools" CXX="$${CXX-c++}"; $(GENERATOR); "$$(cat build/python.executable)" -m pip install . \
	  --quiet --no-build-isolation --no-deps --no-index --upgrade --target build/python/package --config-settings build-dir=build/python \
	  --config-settings cmake.define.ZERO_WERROR=ON --config-settings cmake.define.ZERO_PYTHON_TESTS=ON
	@echo "export PYTHONPATH=$(CURDIR)/build/python/package PATH=$(CURDIR)/build/python/package/bin:\$$PATH"

python-test: python test-setup ## its tests: ranks by torchrun
	@ctest --test-dir build/python --output-on-failure --no-tests=error

docs: ## what there is to read
	@for page in README.md docs/*.md docs/*/*.md; do [ ! -f $$page ] || echo "$$page: $$(grep -m1 '^#' $$page | tr -d '#')"; done

clean: ## removes build/
	@rm -rf build

setup: ## Debian packages and LibTorch
	@scripts/setup.sh

configure: setup
	@$(GENERATOR); cmake --preset $(PRESET) -DCMAKE_PREFIX_PATH="$$(cat build/torch.prefix)" >build/configure.log || { cat build/configure.log; exit 1; }

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' Makefile | expand -t 16
