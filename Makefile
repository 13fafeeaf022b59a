# make demo | test | lint | setup | install | test-gpu | wheel | clean
#
# `make demo` needs Rust alone. The others make a virtual environment in $(VENV) with torch in it; give another with
# VENV=<folder>.

VENV ?= .venv
BIN := $(abspath $(VENV))/bin
READY := $(VENV)/.ready
export PATH := $(BIN):$(PATH)

# The torch-less build and the extension are two builds of one crate: what the features mean is in Cargo.toml.
TORCH := --features torch
NONE := --no-default-features
CARGO_TEST := cargo $(shell cargo nextest --version >/dev/null 2>&1 && echo nextest run || echo test) --locked
CPP := $(wildcard cpp/*.cpp cpp/*.hpp cpp/*.c cpp/include/*.h tests/package/*.c tests/package/*.cpp tests/python/*.hpp) \
  $(wildcard python/mosaic_torch/profiling/zoo/*.cu python/mosaic_torch/profiling/zoo/*.cuh)

.PHONY: demo test test-rust test-python test-gpu lint setup install wheel clean

demo:
	cargo run --release --locked --bin mosaic -- demo

test: test-rust test-python

test-rust: $(READY)
	$(CARGO_TEST) $(TORCH)
	$(CARGO_TEST) $(NONE)
	cargo test --locked --doc

test-python: install
	$(BIN)/python -m pytest -m "not gpu"

# On a machine with an NVIDIA GPU.
test-gpu: install
	$(BIN)/python -m pytest -m gpu

lint: $(READY)
	cargo fmt --check
	cargo clippy --locked --all-targets -- -D warnings
	cargo clippy --locked --all-targets $(NONE) -- -D warnings
	MOSAIC_WERROR=1 cargo clippy --locked --all-targets $(TORCH) -- -D warnings
	clang-format --dry-run -Werror $(CPP)
	ruff check .
	ruff format --check .

setup: $(READY)

$(READY): pyproject.toml
	test -x $(BIN)/python || "$$(.ci/python)" -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --group lint --group test
	touch $@

# As a user would, in an isolated build.
install: $(READY)
	$(BIN)/python -m pip install --no-deps --force-reinstall .

wheel: $(READY)
	$(BIN)/python -m pip wheel --no-deps --wheel-dir dist .

clean:
	rm -rf target dist
