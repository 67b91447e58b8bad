# The simulator as a command, on the files of the current folder:
#   docker build -t stallsim . && docker run --rm -v "$PWD:/work" stallsim run p3.16xlarge vgg16
# The page with sliders listens on loopback only, which -p cannot publish; on Linux, share the host's network:
#   docker run --rm --network host -v "$PWD:/work" stallsim ui
FROM python:3.11-slim AS build
COPY . /src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /src

FROM python:3.11-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(echo /wheels/*.whl)[ui]" && rm -rf /wheels
WORKDIR /work
ENTRYPOINT ["stallsim"]
