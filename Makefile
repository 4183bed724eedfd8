# Short names for what dev.py does; `python3 dev.py COMMAND` is the same where there is no make.
# ARGS are handed on: make serve ARGS='--http-port 9000', make test ARGS='-k batching'.

PYTHON ?= python3

.PHONY: help serve check test bench fuzz proto reference site setup clean

help:
	@$(PYTHON) dev.py help

serve check test bench fuzz proto reference site setup clean:
	@$(PYTHON) dev.py $@ $(ARGS)
