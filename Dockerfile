# An image for the pods of `trireme run --on kubernetes`: Trireme and one Keras backend.
#
#   docker build --build-arg BACKEND=jax --tag REGISTRY/trireme:jax .
#   docker build --build-arg BACKEND=tensorflow --build-arg DEVICE=cuda --tag REGISTRY/trireme:tensorflow-cuda .
#
# BACKEND  tensorflow, jax or torch
# DEVICE   cpu or cuda; CUDA's libraries come with the backend's packages, the driver from the node
# INDEX    another package index to look into: PyTorch's CPU builds are in one of its own, and without it
#          BACKEND=torch DEVICE=cpu is refused, because the common index has CUDA builds only
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS wheel
WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim
ARG BACKEND=tensorflow
ARG DEVICE=cpu
ARG INDEX=""
# A numeric id: with it Kubernetes can tell that this is not root.
RUN useradd --uid 1000 --create-home trireme
# The large layer, which a change of Trireme leaves as it is.
RUN case "${BACKEND}-${DEVICE}" in \
        tensorflow-cpu) package="tensorflow-cpu>=2.20" ;; \
        tensorflow-cuda) package="tensorflow[and-cuda]>=2.20" ;; \
        jax-cpu) package="jax>=0.7" ;; \
        jax-cuda) package="jax[cuda12]>=0.7" ;; \
        torch-cpu) package="torch>=2.6"; test -n "${INDEX}" \
            || { echo "torch on the CPU needs --build-arg INDEX=URL of PyTorch's CPU builds" >&2; exit 1; } ;; \
        torch-cuda) package="torch>=2.6" ;; \
        *) echo "BACKEND=${BACKEND} DEVICE=${DEVICE}: expected tensorflow, jax or torch, and cpu or cuda" >&2; exit 1 ;; \
    esac \
    && pip install --no-cache-dir ${INDEX:+--index-url "${INDEX}"} "${package}"
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install --no-cache-dir "$(echo /wheels/*.whl)[parameter-server,fsspec]"
ENV KERAS_BACKEND=${BACKEND} \
    PYTHONUNBUFFERED=1 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000:1000
WORKDIR /home/trireme
# Pods say themselves what to run; by hand the image tells what it sees.
CMD ["trireme", "explain"]
