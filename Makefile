# Every target works on a bare clone with Python >= 3.11 and make; the first run sets .venv up, later runs need no network.
#
#   make chat                     a conversation in the terminal        MODEL=name for another model
#   make chat ASK="..."           one answer
#   make test | check | bench     ARGS="..." goes to pytest, or to bench/peers.py
#   make clean                    removes .venv and caches, no models

VENV := .venv
PYTHON := $(VENV)/bin/python
MODEL := smollm2-135m

# Handed over in the environment, as typed: neither make nor the shell reads quotes or dollars in a question.
export ONHAND_ASK := $(value ASK)
export ONHAND_MODEL := $(value MODEL)

.PHONY: chat test check bench clean
.DEFAULT_GOAL := chat

$(VENV)/ready-%: pyproject.toml scripts/bootstrap.sh
	@sh scripts/bootstrap.sh $(VENV) $*

# `pull` does nothing, and touches no network, when the model is on this device.
chat: $(VENV)/ready-chat
	@if [ "$$ONHAND_MODEL" = smollm2-135m ]; then $(VENV)/bin/onhand pull smollm2-135m >/dev/null; fi
	@if [ -n "$$ONHAND_ASK" ]; then exec $(VENV)/bin/onhand ask --no-stdin -- "$$ONHAND_MODEL" "$$ONHAND_ASK"; \
	else exec $(VENV)/bin/onhand chat -- "$$ONHAND_MODEL"; fi

test: $(VENV)/ready-dev
	@$(PYTHON) -m pytest $(ARGS)

check: $(VENV)/ready-dev
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m mypy
	@$(PYTHON) -m pytest -q tests/test_architecture.py tests/test_public_api.py

bench: $(VENV)/ready-dev
	@$(PYTHON) bench/peers.py $(ARGS)

clean:
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
