# Images of every role, for amd64 and arm64:
#
#   docker buildx build --platform linux/amd64,linux/arm64 --target agent --tag partage-agent:0.1.0 .
#
# A stage only calls deploy/image/*.sh, so the same trees are made without Docker; tests/cluster runs them. Native parts
# are compiled on an old system (glibc 2.28; deploy/image/glibc.sh holds the library to 2.17) for the interpreter that
# runs them later. Images hold a Python and what the role needs: no shell, no package manager.
ARG PYTHON_VERSION=3.13

FROM quay.io/pypa/manylinux_2_28_x86_64 AS old-amd64
FROM quay.io/pypa/manylinux_2_28_aarch64 AS old-arm64

FROM old-${TARGETARCH} AS wheel
ARG PYTHON_VERSION
COPY . /source
RUN PYTHON=python${PYTHON_VERSION} /source/deploy/image/wheel.sh /wheels

FROM python:${PYTHON_VERSION}-slim-bookworm AS tree
COPY deploy/image /image
COPY --from=wheel /wheels /wheels

FROM tree AS agent-tree
RUN /image/tree.sh agent /wheels /tree

FROM tree AS control-tree
RUN /image/tree.sh control /wheels /tree

# The node agent. Root: kubelet's sockets and checkpoint are root's, and containers must not be able to write policies.
FROM scratch AS agent
COPY --from=agent-tree /tree/ /
ENV PATH=/usr/bin LANG=C.UTF-8
USER 0:0
ENTRYPOINT ["/usr/bin/partage-plugin"]

FROM scratch AS scheduler
COPY --from=control-tree /tree/ /
ENV PATH=/usr/bin LANG=C.UTF-8
USER 65532:65532
ENTRYPOINT ["/usr/bin/partage", "scheduler"]

FROM scratch AS webhook
COPY --from=control-tree /tree/ /
ENV PATH=/usr/bin LANG=C.UTF-8
USER 65532:65532
ENTRYPOINT ["/usr/bin/partage", "webhook"]
