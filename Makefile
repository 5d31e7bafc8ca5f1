# `make run` starts the service, `make test` tests it, `make check` is for before a commit. Each sets up what it needs.
.POSIX:
.PHONY: run up down setup test drills check types format bench peers chaos chaos-long chaos-score dist lock
PYTHON = python3
BIN = .venv/bin
# One file stays on one worker, so that its module-wide servers are started once. Most tests wait for something, so there are
# more workers than cores; tests/conftest.py tells which files come first.
PYTEST_SPREAD = -n 5 --dist loadfile --no-loadscope-reorder

run: setup
	@exec $(BIN)/timers dev

# API and worker pods, Redis, a balancer, Prometheus and Grafana in containers.
up: setup
	@docker/stack up

down: setup
	@docker/stack down

setup:
	@PYTHON='$(PYTHON)' scripts/setup

test: setup
	$(BIN)/python -m pytest $(PYTEST_SPREAD) -m "not drill"

# Long stories from outside of what the tests show in short: chaos, the shipped set-ups at a failover, documents and generators.
drills: setup
	$(BIN)/python -m pytest $(PYTEST_SPREAD) -m drill

# Cheapest first. CI runs it on each Python and server, the drills once, and then `dist`.
check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	@$(MAKE) --jobs=2 types test

# Beside the tests, because it keeps one core busy for a minute.
types: setup
	$(BIN)/mypy

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	$(BIN)/python -m tests.bench

# Other schedulers beside ours, each installed under .peers: `make peers PEERS="bullmq arq"`.
peers: setup
	$(BIN)/python -m tests.bench.peers $(PEERS)

chaos: setup
	$(BIN)/python -m tests.chaos

# A million timers and a thousand kills: 30 pieces of a few minutes. Goes on where it stopped.
chaos-long: setup
	$(BIN)/python -m tests.chaos.long

chaos-score: setup
	$(BIN)/python -m tests.chaos.score

# The release files in dist/: wheel, sdist and bill of materials, checked and tried out.
dist: setup
	scripts/dist

# Renews the versions and hashes of the lock files.
lock:
	scripts/lock --upgrade
