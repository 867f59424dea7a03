#!/usr/bin/env bash
# Usage: pin_constraints.sh UV
#
# Writes constraints/, two files for each Python, which need not be installed: pyXY.txt has the
# newest of all that jaxnb[lab,plot,test,docs] brings today; pyXY-oldest.txt the oldest of what
# jaxnb itself needs that pyproject.toml allows and that has wheels, with the newest tools for
# tests. Run the tests before you commit what it wrote; jaxnb/compat/versions.py is to say the same.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=$1

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
compile=("$uv" pip compile --quiet --no-header --no-annotate --no-emit-package jaxnb)

write() {
  if grep -nE ' @ |://' "$folder/$1.txt"; then
    echo "constraints must hold versions only; the lines above name a place." >&2
    exit 1
  fi
  mkdir -p constraints
  { printf '# %s\n' "${@:2}"; cat "$folder/$1.txt"; } >"constraints/$1.txt"
  echo "constraints/$1.txt: $(grep -c == "constraints/$1.txt") pins"
}

echo uv >"$folder/uv.in"
for version in 3.11 3.12 3.13 3.14; do
  name=py${version/./}
  on="CPython $version, Linux. Written by scripts/pin_constraints.sh."
  "${compile[@]}" --python-version "$version" --extra lab --extra plot --extra test --extra docs \
    pyproject.toml "$folder/uv.in" -o "$folder/$name.txt" >/dev/null
  write "$name" "The newest of all that jaxnb[lab,plot,test,docs] brings on" "$on"
  "${compile[@]}" --python-version "$version" --resolution lowest-direct --no-deps \
    --only-binary :all: pyproject.toml -o "$folder/lowest.txt" >/dev/null
  "${compile[@]}" --python-version "$version" --constraints "$folder/lowest.txt" \
    --extra plot --extra test pyproject.toml -o "$folder/$name-oldest.txt" >/dev/null
  write "$name-oldest" "The oldest of what jaxnb needs, the newest of what its tests need, on" "$on"
  rm "$folder/lowest.txt"
done
