# Two images:  docker build --target worker .  (sources and files),  docker build --target spark .  (Spark sinks besides).
ARG PYTHON=python:3.11-slim-bookworm

FROM ${PYTHON} AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY locks locks
RUN python -m venv /opt/cdcworker \
 && /opt/cdcworker/bin/pip install --no-cache-dir --require-hashes -r locks/build.txt \
 && /opt/cdcworker/bin/pip install --no-cache-dir --require-hashes -r locks/worker.txt
COPY . .
RUN /opt/cdcworker/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM build AS build-spark
RUN /opt/cdcworker/bin/pip install --no-cache-dir --require-hashes --no-build-isolation -r locks/spark.txt \
 && CDC_CACHE_DIR=/opt/cdcworker/cache /opt/cdcworker/bin/cdcworker jars fetch spark \
 && CDC_CACHE_DIR=/opt/cdcworker/cache /opt/cdcworker/bin/cdcworker jars archive

# What runs has no compiler, no root and nothing to write to but /tmp and the state's folder.
FROM ${PYTHON} AS base
LABEL org.opencontainers.image.title="cdcworker" org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin cdc \
 && install -d -o 10001 -g 10001 /var/lib/cdcworker
ENV PATH=/opt/cdcworker/bin:$PATH \
    CDC_CACHE_DIR=/opt/cdcworker/cache \
    CDC_STATE_DIR=/var/lib/cdcworker \
    HEALTH_URL=http://127.0.0.1:8083/healthz \
    HOME=/tmp \
    MALLOC_ARENA_MAX=2 \
    PYTHONDONTWRITEBYTECODE=1
WORKDIR /tmp
EXPOSE 8083
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=30s --retries=6 \
  CMD ["python", "-c", "import os, urllib.request as u; u.urlopen(os.environ['HEALTH_URL'], timeout=5)"]
ENTRYPOINT ["cdcworker"]
CMD ["start", "--config", "/etc/cdcworker/worker.properties"]

FROM base AS worker
COPY --from=build /opt/cdcworker /opt/cdcworker
USER 10001:10001

FROM base AS spark
COPY --from=build-spark /opt/cdcworker /opt/cdcworker
USER 10001:10001
