# The simulator as a command: docker build -t stallsim . && docker run --rm stallsim run p3.16xlarge vgg16
FROM python:3.11-slim
COPY . /src
RUN pip install --no-cache-dir /src && rm -rf /src
ENTRYPOINT ["stallsim"]
