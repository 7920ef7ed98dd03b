# Two commands for a new machine: `make demo` shows Shoal training, `make test` runs the checks.
PYTHON ?= python3
VENV := .venv
# modules are compiled when they are first imported: most of the 13,000 never are
INSTALL := $(VENV)/bin/python -m pip install -q --disable-pip-version-check --no-compile -c constraints.txt

demo: $(VENV)/installed  ## install, train a pong player, and record a video of it
	$(VENV)/bin/shoal train pong
	$(VENV)/bin/shoal eval last --episodes 10 --video pong.gif

test: $(VENV)/ready  ## install, then run the checks
	scripts/check

$(VENV)/installed: pyproject.toml constraints.txt hatch_build.py
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e .
	touch $@

# the tests' envs compile on the other cores, meanwhile
$(VENV)/ready: $(VENV)/installed
	$(VENV)/bin/python -m tests.compile_envs & $(INSTALL) -e ".[dev]" && wait
	touch $@

docs: $(VENV)/installed  ## build the docs site into build/site, and check it
	$(INSTALL) -e ".[docs]"
	$(VENV)/bin/python scripts/site
	$(VENV)/bin/python scripts/site-check

clean:  ## remove the virtual environment and all build outputs
	rm -rf $(VENV) build dist shoal/native/lib .pytest_cache .mypy_cache .ruff_cache .hypothesis

.PHONY: demo test docs clean
