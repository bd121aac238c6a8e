# A front over the CMake presets. PRESET=dev make test, DEMO="--model micro" make demo.
PRESET ?= release
JOBS ?= $(shell nproc)
DEMO ?= --model tiny --ranks 4 --steps 20
BUILD := build/$(PRESET)

export CMAKE_BUILD_PARALLEL_LEVEL ?= $(JOBS)

.DEFAULT_GOAL := build
.PHONY: build bench clean configure demo docs help lint setup test

build: configure ## everything but the benchmarks
	@cmake --build --preset $(PRESET)

demo: configure ## trains a language model on 4 ranks under every plan and compares them
	@cmake --build --preset $(PRESET) --target zero_cli
	$(BUILD)/zero compare $(DEMO)

test: build ## every test
	@ctest --preset $(PRESET) --parallel $(JOBS)

bench: configure ## builds and runs the benchmarks
	@cmake --build --preset $(PRESET) --target benches
	@for program in $(BUILD)/bench/*; do [ ! -f $$program ] || $$program || exit; done

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
