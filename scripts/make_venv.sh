#!/usr/bin/env bash
# Usage: make_venv.sh FOLDER newest|oldest
#
# Makes an environment with the newest or the oldest Python that is found; $PYTHON, if set, names
# the one to take for the newest.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$1

if [ "$2" = newest ] && [ -n "${PYTHON:-}" ]; then
  python=$PYTHON
else
  python=$(scripts/find_python.sh "$2")
fi
if ! "${python:-false}" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  echo "jaxnb needs Python 3.11 or newer; ${python:-python3} is" \
    "$("${python:-python3}" --version 2>&1 || echo missing)." \
    "Name another one: make PYTHON=/path/to/python3.13 demo" >&2
  exit 1
fi

# Debian keeps a part of the standard library that venv needs in a package of its own.
if ! "$python" -c 'import ensurepip' 2>/dev/null; then
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    scripts/apt_install.sh "python$version-venv"
  else
    echo "$python lacks ensurepip, which venv needs. On Debian and Ubuntu:" \
      "sudo apt-get install python$version-venv" >&2
    exit 1
  fi
fi

rm -rf "$folder"
"$python" -m venv "$folder"
echo "made $folder with $("$folder/bin/python" --version)"
