#!/usr/bin/env bash
# Usage: install.sh WHAT REQUIREMENT...
#
# Installs into .venv at the versions of constraints.txt, those of build tools included: with uv
# where it is installed, with pip elsewhere.
set -euo pipefail
cd "$(dirname "$0")/.."
what=$1
shift

echo "installing $what into .venv …"
if command -v uv >/dev/null; then
  export UV_HTTP_RETRIES=5
  install=(uv pip install --quiet --python .venv/bin/python
    --constraints constraints.txt --build-constraints constraints.txt)
else
  # -c does not reach the isolated environment that builds jaxnb; the variable does.
  export PIP_CONSTRAINT=$PWD/constraints.txt
  install=(.venv/bin/python -m pip --disable-pip-version-check --retries 5 install -qq)
fi
if ! "${install[@]}" "$@"; then
  echo "could not install $what: the lines above name the package. Nothing is half made:" \
    "the same make target goes on where this one stopped." >&2
  exit 1
fi
