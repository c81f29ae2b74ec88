# make run        train the example job on this machine
# make test       ruff, mypy, vulture and the tests but for the slow ones
# make test-all   the slow ones; as root, with sshd and ip installed, both also across several fake hosts
# The first of them makes .venv.  ARGS="..." adds arguments; make test PYTHON=python3.13 VENV=.venv-3.13 is with another Python.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Three processes share the test files, because tests wait as long as they compute; LONG_FILES in tests/conftest.py are first.
# JOBS=0: one after the other.
JOBS ?= 3
SIDE_BY_SIDE := -n $(JOBS) --dist loadfile --no-loadscope-reorder

# An environment of its own, $(1), that finds what this one has installed.
define beside
$(BIN)/python -m venv $(1)
	$(BIN)/python -c "import sysconfig; print(f'import site; site.addsitedir({sysconfig.get_path(\"purelib\")!r})')" \
		> $$($(1)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/installed.pth
endef

.PHONY: run test test-all again lint orphans histories faults soak nemesis simulate mutate fuzz museum slurm environments page stress training rlinf rlinf-env engines engines-env bench results gpu gpu-bundle docs clean

run: $(READY)
	$(BIN)/rlinf-launch examples/embodiment/train_embodied_agent.py $(ARGS)

# Hundreds of processes that the tests start would each compile the package where the environment forbids to keep it.
test test-all: export PYTHONDONTWRITEBYTECODE :=
test: lint
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "not slow and not long" $(ARGS)

test-all: $(READY)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "slow and not long" $(ARGS)

# What has failed in the last run, one after the other; fails too where that run has not come to its tests.
again: $(READY)
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures=none $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/vulture

# A million items through channels, while producers and consumers are cancelled and killed; 200 random orders of messages
# among 8 ranks.
histories: $(READY)
	$(BIN)/python -m pytest -m histories $(ARGS)

# Rough networks, nodes that are cut off and storms of deaths, for longer than make test-all has; then the rows of the
# fault matrix that have no record yet, and docs/faults.md.
faults: $(READY)
	$(BIN)/python -m pytest -m faults $(ARGS)
	$(BIN)/python -m tests.faults.matrix

# Ten minutes of everything over two nodes, with a kill every ten seconds: nothing else fails, and nothing grows.
soak: $(READY)
	$(BIN)/python -m tests.faults.soak $(ARGS)

# A training run on six hosts (network namespaces, as root) whose workers and daemons are killed, stopped and cut off.
nemesis: $(READY)
	$(BIN)/python -m tests.faults.nemesis $(ARGS)

# Random pairs of a source and a destination of weights: 200 000 within one process, or RLINF_FUZZ_EXAMPLES, and a
# hundredth as many over each link between processes.
fuzz: $(READY)
	$(BIN)/python -m pytest -n $(JOBS) -m fuzz -rP tests/weights/fuzz $(ARGS)

# Programs that stand still, each for a reason of its own, and what `rlinf-ctl stuck` says of them.
museum: $(READY)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -rP tests/museum $(ARGS)

# The page of rlinf-ctl in headless Chromium; RLINF_PAGE_PICTURES=DIR keeps its pictures.
page: $(READY)
	$(BIN)/python -m pytest -rP tests/launcher/control/test_page_in_browser.py $(ARGS)

# RLinf's own programs, unedited: PPO on Pendulum by its runners and workers.
rlinf: rlinf-env
	$(BIN)/python -m pytest -m rlinf -rP tests/rlinf_programs $(ARGS)

# RLinf without Ray, in an environment of its own that finds what this one has installed, torch and this package among it.
rlinf-env: .venv-rlinf/.ready
.venv-rlinf/.ready: tests/rlinf_programs/requirements.txt $(READY)
	$(call beside,.venv-rlinf)
	.venv-rlinf/bin/python -m pip install --no-deps -r $<
	touch $@

# Inference engines: vLLM and its server, on the CPU, in an environment of their own.
engines: engines-env
	.venv-vllm/bin/python -m pytest -m engines -rP tests/engines tests/examples $(ARGS)

# vLLM without what it needs for images and sound, in an environment that finds the rest in this one, torch among it.
engines-env: .venv-vllm/.ready
.venv-vllm/.ready: constraints-vllm.txt $(READY)
	$(call beside,.venv-vllm)
	.venv-vllm/bin/python -m pip install --no-deps -r $<
	touch $@

# The launcher in jobs of a real Slurm on this machine.  Installs nothing: what is missing, and how to get it, is the reason
# of the tests that skip.
slurm: $(READY)
	$(BIN)/python -m pytest -m slurm tests/launcher/test_over_slurm.py $(ARGS)

# One program in some sixty environments: namespaces, limits, closed descriptors, ignored signals, odd names.  As root.
environments: $(READY)
	$(BIN)/python -m pytest -m environments tests/test_environments.py $(ARGS)

# Half a minute of weights sent without a pause, by every scheme, while four readers look at every value; and receivers
# that end or stop while large weights are on their way; and programs of the machine, forty times as many.
stress: $(READY)
	RLINF_STRESS_SECONDS=30 $(BIN)/python -m pytest tests/weights -k "no_reader or on_their_way or waits_for_no_receiver" $(ARGS)
	RLINF_WEIGHT_PROGRAMS=40 $(BIN)/python -m pytest -q tests/weights/machine $(ARGS)

# Random programs in simulated clusters, SEEDS of them, on both cores; what they break is printed with the seed.  Then the
# first COVERED_SEEDS once more under a tracer, which doubles their time, and the branches of the protocol that they run.
SEEDS ?= 20000
COVERED_SEEDS ?= 1000
simulate: $(READY)
	RLINF_SIMULATED_SEEDS=$(SEEDS) $(BIN)/python -m pytest -q tests/simulation/test_seeds.py $(ARGS)
	$(BIN)/python -m tests.simulation.coverage_of_seeds $(COVERED_SEEDS)

# Small defects in the modules of state and protocol, one at a time in a copy of the checkout, and docs/mutants.md: which of
# them no seed and no test that runs their line sees.  It goes on where it was interrupted.
mutate: $(READY)
	$(BIN)/python -m tests.mutation $(ARGS)

# The longer training runs of the examples.
training: $(READY)
	$(BIN)/python -m pytest -m training $(ARGS)

# Every kill of every process of a run, twenty times over.
orphans: $(READY)
	$(BIN)/python -m pytest -m orphans $(ARGS)

# What this project says of GPUs, proved on this machine; docs/gpu.md.  ARGS="--only a,c" chooses steps.
gpu: $(READY)
	$(BIN)/python -m tests.gpu.run $(ARGS)

# gpu-bundle/: the same for a machine with Python 3.12 and torch, but without a network.
gpu-bundle: $(READY)
	$(BIN)/python -m tests.gpu.bundle $(ARGS)

bench: $(READY)
	$(BIN)/python -m benches.bench_launch $(ARGS)
	$(BIN)/python -m benches.bench_call $(ARGS)
	$(BIN)/python -m benches.bench_send $(ARGS)
	$(BIN)/python -m benches.bench_channel $(ARGS)
	$(BIN)/python -m benches.bench_broadcast $(ARGS)
	$(BIN)/python -m benches.bench_weights $(ARGS)
	$(BIN)/python -m benches.bench_placement $(ARGS)
	$(BIN)/python -m benches.bench_trace $(ARGS)
	$(BIN)/python -m benches.bench_cockpit $(ARGS)
	$(BIN)/python -m benches.bench_recorder $(ARGS)

# Returns of the embodiment example beside those of other PPOs: the runs that have no record yet, then docs/results.md.
# ARGS="--tasks HalfCheetah-v5 --seeds 0-9 --contestants sync sb3" chooses some.
results: $(READY)
	$(BIN)/python -m benches.results $(ARGS)

# docs/api.md: the public names with their signatures and the first paragraphs of their docstrings.
docs: $(READY)
	$(BIN)/python -m docs.generate_api

clean:
	rm -rf .venv .venv-* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is %d.%d: make PYTHON=..." % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt -e '.[test,examples]'
	@touch $@
