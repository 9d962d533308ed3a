# Each target sets up its own virtual environment first (see scripts/dev.py). Without make:
#   python scripts/dev.py demo
#   python scripts/dev.py test
PYTHON ?= python3
ARGS ?=

.PHONY: demo test lint format build docs setup clean

demo test lint format build docs setup:
	$(PYTHON) scripts/dev.py $@ $(ARGS)

clean:
	rm -rf .venv .venv.torch .venv-* dist build
