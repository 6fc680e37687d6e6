# Every target works on a fresh clone: the first one builds $(VENV), the later ones find it there.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed

.PHONY: setup demo lint test test-full bench

setup: $(READY)

# Python's version is asked first, because pip's own message about it is hard to read.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v <= (3, 13) else "onnxmill needs Python 3.11 to 3.13, and %s is %d.%d: make setup PYTHON=python3.12" % (sys.executable, *v))'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[all]' -c constraints.txt
	touch $@

demo: setup
	$(BIN)/python examples/mnist/train.py
	$(BIN)/onnxmill convert examples/mnist/spec.yaml --out out/mnist

# The folders as the installed package names them, so that mypy checks onnxmill.tasks and not a bare `tasks`.
.lint/onnxmill:
	mkdir -p $@
	for name in flows tasks calibration; do ln -sfn ../../$$name $@/$$name; done

lint: setup .lint/onnxmill
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests

# TensorFlow has a process of its own: imported beside the tests of the command line, pytest ends with "lost sys.stderr".
TENSORFLOW := tests/test_export_tensorflow.py

test: lint
	$(BIN)/pytest -m 'not full' --ignore $(TENSORFLOW)
	$(BIN)/pytest -m 'not full' $(TENSORFLOW)

test-full: test
	$(BIN)/pytest -m full --ignore $(TENSORFLOW)
	$(BIN)/pytest -m full $(TENSORFLOW)

bench: setup
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/calibration.py
	$(BIN)/python benchmarks/calibration_memory.py
	$(BIN)/python benchmarks/calibration_accuracy.py
