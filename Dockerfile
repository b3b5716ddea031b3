# quantry on CPUs: docker build -t quantry . && docker run --rm -v "$PWD:/work" quantry quantize model.onnx --data images
FROM python:3.13-slim-bookworm AS build
WORKDIR /source
COPY . .
# The versions that are tested. The wheel has the compiled kernels, so no compiler is needed later.
RUN python -m venv /opt/quantry \
    && grep -v '^torch==' constraints.txt > /tmp/constraints.txt \
    && /opt/quantry/bin/pip install --no-cache-dir -c /tmp/constraints.txt '.[mix,search]' \
    && /opt/quantry/bin/quantry doctor

FROM python:3.13-slim-bookworm
COPY --from=build /opt/quantry /opt/quantry
# Models come from anywhere: nothing here runs as root, and only the mounted folder can be written.
RUN useradd --create-home --uid 1000 quantry
USER 1000
WORKDIR /work
ENV PATH=/opt/quantry/bin:$PATH
ENTRYPOINT ["quantry"]
CMD ["--help"]
