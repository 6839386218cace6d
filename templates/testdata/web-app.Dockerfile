FROM node:22-slim
SHELL ["/bin/bash", "-c"]
ENV PORT="3000"
ENV QUOTED="a \"b\" \$c \\d 'e'"
USER root
WORKDIR /app
RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ca-certificates git && rm -rf /var/lib/apt/lists/*
RUN PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore python3 -m pip install --no-cache-dir --no-input --disable-pip-version-check 'numpy>=1,<3'
RUN npm install --global --no-audit --no-fund typescript@5.6.2 && npm cache clean --force
COPY ["app", "/app"]
RUN ["/bin/bash", "-c", "set -e\nnpm ci --prefix /app"]
RUN echo "$HOME" > '/tmp/a b'
USER node
EXPOSE 3000
EXPOSE 8080
HEALTHCHECK --interval=1m0s --timeout=10s --retries=3 CMD ["/bin/bash", "-c", "curl -f localhost"]
CMD ["/bin/bash", "-c", "node \"server.js\""]
