# One image for workers and for the demo's services. Two stages: the build tools stay behind.
FROM python:3.11-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY locks locks
RUN python -m venv /opt/cdcworker \
 && /opt/cdcworker/bin/pip install --no-cache-dir --require-hashes -r locks/build.txt \
 && /opt/cdcworker/bin/pip install --no-cache-dir --require-hashes --no-build-isolation -r locks/all.txt
COPY . .
RUN /opt/cdcworker/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
 && CDC_CACHE_DIR=/opt/cdcworker/cache /opt/cdcworker/bin/cdcworker jars fetch

FROM python:3.11-slim-bookworm
RUN useradd --uid 10001 --create-home cdc
COPY --from=build /opt/cdcworker /opt/cdcworker
ENV PATH=/opt/cdcworker/bin:$PATH CDC_CACHE_DIR=/opt/cdcworker/cache MALLOC_ARENA_MAX=2 PYTHONDONTWRITEBYTECODE=1
USER 10001
EXPOSE 8083
ENTRYPOINT ["cdcworker"]
CMD ["start", "--config", "/etc/cdcworker/worker.properties"]
