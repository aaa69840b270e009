# syntax=docker/dockerfile:1
# Four images, by --target:
#   doctor  the operator's tools, without torch: the webhook, and `augury doctor` in CI
#   cpu     the server on a CPU, with the embedded model and its drafters inside
#   cuda    the same for an NVIDIA GPU
#   dev     the repository itself: `make demo` and `make test` inside
# TORCH_INDEX is an index that has the build of torch you want, where the default one has another.
ARG PYTHON=3.12

FROM python:${PYTHON}-slim-bookworm AS base
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
RUN useradd --uid 10001 --create-home augury && python -m venv /opt/augury/venv
ENV PATH=/opt/augury/venv/bin:$PATH
WORKDIR /opt/augury/src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src

FROM base AS doctor
RUN pip install -c constraints.txt . && rm -rf /opt/augury/src
WORKDIR /work
USER 10001
EXPOSE 8443
ENTRYPOINT ["augury"]
CMD ["doctor", "."]

FROM base AS cpu
ARG TORCH_INDEX=""
COPY packages packages
RUN pip install -c constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$(grep '^torch==' constraints.txt)" \
    && pip install -c constraints.txt '.[serve]' ./packages/augury-smollm2-drafters && rm -rf /opt/augury/src
ENV AUGURY_CACHE=/opt/augury/cache
RUN augury models pull default && chown -R augury /opt/augury/cache
WORKDIR /work
USER 10001
EXPOSE 8000
HEALTHCHECK --start-period=120s CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=5)"]
ENTRYPOINT ["augury"]
CMD ["serve", "default", "--host", "0.0.0.0"]

FROM base AS cuda
ARG TORCH_INDEX=""
# Triton compiles a small launcher for each kernel, so a C compiler stays in the image.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY packages packages
# The pins of torch and triton are those of the CPU build; here torch brings the triton that it was built with.
# hadolint ignore=DL3013
RUN grep -vE '^(torch|triton)==' constraints.txt > rest.txt \
    && pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} 'torch>=2.11,<2.14' \
    && pip install -c rest.txt '.[serve]' ./packages/augury-smollm2-drafters && rm -rf /opt/augury/src
ENV AUGURY_CACHE=/opt/augury/cache NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN augury models pull default && chown -R augury /opt/augury/cache
WORKDIR /work
USER 10001
EXPOSE 8000
HEALTHCHECK --start-period=300s CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health', timeout=5)"]
ENTRYPOINT ["augury"]
CMD ["serve", "default", "--host", "0.0.0.0", "--device", "cuda"]

FROM base AS dev
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends make git gcc libc6-dev curl openssl && rm -rf /var/lib/apt/lists/*
COPY . .
RUN make setup
CMD ["make", "demo"]
