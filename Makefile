# A front over the CMake presets. PRESET=dev make test, DEMO="--model micro" make demo.
PRESET ?= release
JOBS ?= $(shell nproc)
DEMO ?= --model tiny --ranks 4 --steps 20
PEERS ?= --growth 200
BUILD := build/$(PRESET)

export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)

.DEFAULT_GOAL := build
.PHONY: build bench bench-setup clean configure demo docs help lint setup test test-setup

build: configure ## everything but the benchmarks
	@cmake --build --preset $(PRESET)

demo: configure ## trains a language model on 4 ranks under every plan and compares them
	@cmake --build --preset $(PRESET) --target zero_cli
	$(BUILD)/zero compare $(DEMO)

test: test-setup build ## every test
	@ctest --preset $(PRESET) --parallel $(JOBS)

bench: bench-setup configure ## kernels, collectives and training steps, each against its peers
	@cmake --build --preset $(PRESET) --target benches zero_cli
	@for source in bench/micro/*.cpp; do $(BUILD)/bench/$$(basename $$source .cpp) || exit; done
	@bench/collectives/run.py --build $(BUILD) --json build/collectives.json
	@bench/peers/run.py --ours $(BUILD)/bench/peers_ours --zero $(BUILD)/zero --json build/peers.json $(PEERS)
	@bench/plot.py build/peers.json

bench-setup:
	@scripts/setup.sh libopenmpi-dev

test-setup:
	@scripts/setup.sh --tests

lint: configure ## format, clang-tidy, layers, self-contained headers
	@scripts/lint.sh $(BUILD)

docs: ## what there is to read
	@for page in README.md docs/*.md docs/*/*.md; do [ ! -f $$page ] || echo "$$page: $$(grep -m1 '^#' $$page | tr -d '#')"; done

clean: ## removes build/
	@rm -rf build

setup: ## Debian packages and LibTorch
	@scripts/setup.sh

configure: setup
	@command -v ninja >/dev/null && export CMAKE_GENERATOR="$${CMAKE_GENERATOR-Ninja}"; \
	cmake --preset $(PRESET) -DCMAKE_PREFIX_PATH="$$(cat build/torch.prefix)" >build/configure.log || { cat build/configure.log; exit 1; }

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /make \1\t/p' Makefile | expand -t 14
