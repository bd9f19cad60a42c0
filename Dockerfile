# attncheck alone, for lint and for snapshots taken elsewhere: no torch, no CUDA, no root.
#   docker build -t attncheck . && docker run --rm -v "$PWD:/work:ro" attncheck lint --target h100x8 train.sh
# In the image that trains, install it into an environment of its own: docs/ci-and-clusters.md, "Containers".
FROM python:3.12-slim-bookworm AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY attncheck attncheck
RUN python -m venv --without-pip /opt/attncheck \
 && python -m pip --python /opt/attncheck/bin/python install --no-cache-dir . \
 && /opt/attncheck/bin/python -m compileall -q /opt/attncheck/lib

FROM python:3.12-slim-bookworm
COPY --from=build /opt/attncheck /opt/attncheck
RUN useradd --create-home --uid 1000 attncheck
USER 1000
ENV PATH=/opt/attncheck/bin:$PATH
WORKDIR /work
ENTRYPOINT ["attncheck"]
CMD ["--help"]
