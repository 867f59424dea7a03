#!/usr/bin/env bash
# Writes constraints.txt: the versions that an install from scratch, without any pins,
# brings today. Run the tests before you commit what it wrote.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
# soupsieve 3 and later want Python 3.11.5; Debian 12 has 3.11.2.
"$folder/venv/bin/pip" install -qq -e '.[lab,plot,test,docs]' uv 'soupsieve<3'
version=$("$folder/venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
{
  echo "# What CI installs, pinned: what an install from scratch of jaxnb[lab,plot,test,docs]"
  echo "# brought on CPython $version, $(uname -s). Written by scripts/pin_constraints.sh."
  "$folder/venv/bin/pip" freeze --exclude-editable --exclude jaxnb
} >"$folder/constraints.txt"
if grep -nE ' @ |://' "$folder/constraints.txt"; then
  echo "constraints.txt must hold versions only; the lines above name a place." >&2
  exit 1
fi
mv "$folder/constraints.txt" constraints.txt
echo "constraints.txt: $(grep -c == constraints.txt) pins"
