# Two commands for a fresh machine: `make demo` and `make test`. `make doctor PYTHON=…` examines your own environment.
PYTHON ?= python3
BASE ?= python3
WORKERS ?= 3

.PHONY: demo doctor test tests selftest pythons coverage lint style types names clean

demo: .venv-demo/ready  ## show the main job on real input, in an environment of its own
	.venv-demo/bin/attncheck demo

# A finding is an answer, not a failed build: make stops only if there is no answer.
doctor: .venv/ready  ## examine the environment of $(PYTHON)
	@.venv/bin/attncheck doctor --python "$(PYTHON)" || { code=$$?; [ $$code -eq 1 ] || exit $$code; \
	echo "attncheck doctor found problems: its exit code is 1. Another environment: make doctor PYTHON=PATH; an example: make demo"; }

# attncheck writes no byte code beside itself: compiled once here, or each of its thousands of starts would do it.
# A failed test runs once more, and the summary lists it: the tests measure real processes, and a busy machine is late.
# The types are checked beside the tests: mypy takes one core for minutes.
test: .venv-test/ready style  ## lint, types, import contract, every test that this machine can run
	.venv-test/bin/python -m compileall -q attncheck
	$(MAKE) --no-print-directory --jobs=2 types tests

tests: .venv-test/ready
	.venv-test/bin/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder --reruns 1 --reruns-delay 5 -rR $(PYTEST)

selftest: .venv-test/ready  ## plant what a machine can break, and see it caught
	.venv-test/bin/attncheck selftest --device cpu

pythons: .venv-test/ready  ## every command on every Python that is found here, with the oldest and the newest dependencies
	.venv-test/bin/python -m tests.pythons

coverage: .venv-test/ready  ## the same, with what the tests reach
	.venv-test/bin/python -m pytest --cov --cov-report=term:skip-covered $(PYTEST)

lint: style types  ## style, types, import contracts, spelling

style: .venv-test/ready
	.venv-test/bin/ruff check .
	.venv-test/bin/ruff format --check .
	.venv-test/bin/lint-imports --no-cache
	.venv-test/bin/typos

types: .venv-test/ready
	.venv-test/bin/mypy

names: .venv-test/ready  ## read the frameworks' new releases into attncheck/lint/names (downloads wheels)
	.venv-test/bin/python -m tools.names.update

.venv/ready: pyproject.toml
	$(BASE) -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

# torch for CPUs: from the index that pip is set up with if that has it, else from PyTorch's own.
.venv-demo/ready: pyproject.toml
	@echo "Setting up .venv-demo: torch for CPUs, transformers and TRL; about 1.4 GB on disk, 1 to 5 minutes."
	$(BASE) -m venv .venv-demo
	.venv-demo/bin/python -m pip install --quiet torch==2.13.0+cpu 2>/dev/null || \
	.venv-demo/bin/python -m pip install --quiet torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
	.venv-demo/bin/python -m pip install --quiet transformers==5.17.0 trl==1.16.0 --editable .
	touch $@

# torch is pinned: a looser range would pull gigabytes of CUDA libraries into a test environment.
.venv-test/ready: pyproject.toml
	$(BASE) -m venv .venv-test
	.venv-test/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	.venv-test/bin/python -m pip install --quiet torch==2.13.0
	.venv-test/bin/python -m pip install --quiet --editable . --group test --group lint
	touch $@

clean:
	rm -rf .venv .venv-demo .venv-test attncheck-demo
