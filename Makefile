# Two commands for a fresh machine: `make demo` to see Shoal run, `make test` to see it proven.
PYTHON ?= python3
VENV := .venv

demo: $(VENV)/installed  ## set up, then train breakout before your eyes
	$(VENV)/bin/shoal train breakout

test: $(VENV)/ready  ## set up, then pass every check
	scripts/check

$(VENV)/installed: pyproject.toml constraints.txt hatch_build.py
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/ready: $(VENV)/installed
	$(VENV)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:  ## remove the virtual environment and everything built
	rm -rf $(VENV) build dist shoal/native/lib .pytest_cache .mypy_cache .ruff_cache .hypothesis

.PHONY: demo test clean
