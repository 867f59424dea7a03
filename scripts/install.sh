#!/usr/bin/env bash
# Usage: install.sh FOLDER newest|oldest|next WHAT REQUIREMENT...
#
# Installs into an environment, at the newest or the oldest versions that constraints/ has for its
# Python, those of build tools included; "next" for the newest that there are, pre-releases too. uv
# does it in a fifth of pip's time: pip brings it into the environment where it is not installed,
# and does it alone where uv cannot (say, as only pip has been told of a mirror).
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1 age=$2 what=$3
shift 3

pins=py$("$folder/bin/python" -c 'import sys; print("%d%d" % sys.version_info[:2])')
if [ "$age" = oldest ]; then pins=$pins-oldest; fi
constraints=$PWD/constraints/$pins.txt uv_options=() pip_options=()
if [ "$age" = next ]; then
  constraints=/dev/null uv_options=(--upgrade --prerelease allow) pip_options=(--upgrade --pre)
elif [ ! -e "$constraints" ]; then
  echo "no constraints/$pins.txt: the newest of everything is installed, which nobody has tested"
  constraints=/dev/null
fi

# -c does not reach the isolated environment that builds jaxnb; the variable does.
export PIP_CONSTRAINT=$constraints
pip=("$folder/bin/python" -m pip --disable-pip-version-check --retries 5 install -qq --no-compile)

with_uv() {
  local uv
  if ! uv=$(PATH=$PATH:$PWD/$folder/bin:$PWD/.venv/bin command -v uv); then
    "${pip[@]}" uv && uv=$folder/bin/uv || return
  fi
  UV_HTTP_RETRIES=5 "$uv" pip install --quiet --python "$folder/bin/python" \
    --constraints "$constraints" --build-constraints "$constraints" "${uv_options[@]}" "$@"
}

echo "installing $what into $folder …"
if ! with_uv "$@" && ! "${pip[@]}" "${pip_options[@]}" "$@"; then
  echo "could not install $what: the lines above name the package. Nothing is half made:" \
    "the same make target goes on where this one stopped." >&2
  exit 1
fi

# uv links files to its cache: another checkout's installation would write its own path into this
# one's, which would import the other's code from then on.
for path in "$folder"/lib/python*/site-packages/*jaxnb*.pth; do
  if [ -e "$path" ]; then
    cp "$path" "$path.own"
    mv "$path.own" "$path"
  fi
done
