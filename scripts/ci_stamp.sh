#!/usr/bin/env bash
# Usage: ci_stamp.sh state|write STATE|check
#
# state: prints the tree of HEAD, and what is changed beside it.
# write: notes that .ci/run has passed on the tree of HEAD; nothing if there are changes beside it,
#   or if the state is not the one that it was when the run began.
# check: says whether it has, and fails if not.
set -euo pipefail
cd "$(dirname "$0")/.."

stamp=.stamps/ci-passed
tree=$(git rev-parse 'HEAD^{tree}')
changes=$(git status --porcelain --untracked-files=all --ignore-submodules=none)

case ${1:-} in
  state)
    echo "$tree $changes"
    ;;
  write)
    if [ "${2:-}" != "$tree $changes" ]; then
      echo "ci: no stamp: the folder was changed during the run"
    elif [ -n "$changes" ]; then
      echo "ci: no stamp: the folder has changes that are not committed"
    else
      mkdir -p .stamps
      echo "$tree" >"$stamp"
    fi
    ;;
  check)
    if [ -n "$changes" ]; then
      echo "not known: these changes are not committed, and .ci/run tests what is there:" >&2
      echo "$changes" >&2
      exit 1
    elif [ "$(cat "$stamp" 2>/dev/null)" = "$tree" ]; then
      echo "passed: .ci/run on tree $tree"
    else
      echo "not passed: .ci/run has not passed here on tree $tree. Type .ci/run" >&2
      exit 1
    fi
    ;;
  *)
    echo "usage: $0 state|write STATE|check" >&2
    exit 2
    ;;
esac
