#!/usr/bin/env bash
# Usage: install.sh WHAT REQUIREMENT...
#
# Installs into .venv at the versions of constraints.txt, those of build tools included. uv does it
# in a fifth of pip's time: pip brings it into .venv where it is not installed, and does it alone
# where uv cannot (say, as only pip has been told of a mirror).
set -euo pipefail
cd "$(dirname "$0")/.."
what=$1
shift

# -c does not reach the isolated environment that builds jaxnb; the variable does.
export PIP_CONSTRAINT=$PWD/constraints.txt
pip=(.venv/bin/python -m pip --disable-pip-version-check --retries 5 install -qq --no-compile)

with_uv() {
  local uv
  if ! uv=$(PATH=$PATH:$PWD/.venv/bin command -v uv); then
    "${pip[@]}" uv && uv=.venv/bin/uv || return
  fi
  UV_HTTP_RETRIES=5 "$uv" pip install --quiet --python .venv/bin/python \
    --constraints constraints.txt --build-constraints constraints.txt "$@"
}

echo "installing $what into .venv …"
if ! with_uv "$@" && ! "${pip[@]}" "$@"; then
  echo "could not install $what: the lines above name the package. Nothing is half made:" \
    "the same make target goes on where this one stopped." >&2
  exit 1
fi

# uv links files to its cache: another checkout's installation would write its own path into this
# one's, which would import the other's code from then on.
for path in .venv/lib/python*/site-packages/*jaxnb*.pth; do
  if [ -e "$path" ]; then
    cp "$path" "$path.own"
    mv "$path.own" "$path"
  fi
done
