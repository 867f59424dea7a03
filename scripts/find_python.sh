#!/usr/bin/env bash
# Usage: find_python.sh newest|oldest
#
# Prints the path of the newest or the oldest Python on PATH and among pyenv's that jaxnb is made
# for. It must run, and have what an environment and Jupyter need. Prints nothing if there is none.
set -euo pipefail

VERSIONS=(3.14 3.13 3.12 3.11)
NEEDED=(ctypes sqlite3 ssl venv)

# Prints a Python's path if it is of a version and has some modules. pyenv puts commands on PATH
# that fail, and a Python that was built without a library's headers lacks modules.
path_of() {
  local version=$1 candidate=$2
  shift 2
  "$candidate" - "$version" "$@" 2>/dev/null <<'PYTHON'
import importlib, sys
if "%d.%d" % sys.version_info[:2] != sys.argv[1]:
    sys.exit(1)
for name in sys.argv[2:]:
    importlib.import_module(name)
print(getattr(sys, "_base_executable", sys.executable))
PYTHON
}

# Debian keeps ensurepip in a package of its own: a Python without it is taken if no other is there.
find_with() {
  local version candidate
  for version in "${versions[@]}"; do
    for candidate in "python$version" python3 \
      "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/"python$version"; do
      if command -v "$candidate" >/dev/null && path_of "$version" "$candidate" "$@"; then
        return 0
      fi
    done
  done
  return 1
}

case ${1:-} in
  newest) versions=("${VERSIONS[@]}") ;;
  oldest) mapfile -t versions < <(printf '%s\n' "${VERSIONS[@]}" | tac) ;;
  *)
    echo "usage: $0 newest|oldest" >&2
    exit 2
    ;;
esac
find_with "${NEEDED[@]}" ensurepip || find_with "${NEEDED[@]}" || true
