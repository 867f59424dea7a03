#!/usr/bin/env bash
# Makes .venv with the first Python of at least 3.11 among $PYTHON (if set), python3 and
# the versioned names.
set -euo pipefail
cd "$(dirname "$0")/.."

is_new_enough() {
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

python=
for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
  if command -v "$candidate" >/dev/null && is_new_enough "$candidate"; then
    python=$candidate
    break
  fi
done
if [ -z "$python" ]; then
  echo "jaxnb needs Python 3.11 or newer; ${PYTHON:-python3} is" \
    "$("${PYTHON:-python3}" --version 2>&1 || echo missing)." \
    "Name another one: make PYTHON=/path/to/python3.11 demo" >&2
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

rm -rf .venv
"$python" -m venv .venv
echo "made .venv with $(.venv/bin/python --version)"
