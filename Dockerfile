# The roles of a federation: docker buildx build --platform linux/amd64,linux/arm64 -t sfedhp:0.1.0 .
FROM python:3.11-slim AS build
COPY . /source
RUN python -m venv /opt/sfedhp \
    && /opt/sfedhp/bin/pip install --no-cache-dir -c /source/constraints.txt "/source[deploy]"

FROM python:3.11-slim
COPY --from=build /opt/sfedhp /opt/sfedhp
RUN useradd --uid 10001 --no-create-home sfedhp && install -d -o sfedhp -g sfedhp -m 700 /var/lib/sfedhp
USER sfedhp
WORKDIR /var/lib/sfedhp
ENV OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1
# `docker run sfedhp client /var/lib/sfedhp/client-0-0`; exit code 0: the run is over.
ENTRYPOINT ["/opt/sfedhp/bin/sfedhp"]
