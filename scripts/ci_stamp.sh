#!/usr/bin/env bash
# Usage: ci_stamp.sh write|check
#
# write: notes that .ci/run has passed on the tree of HEAD; nothing if there are changes beside it.
# check: says whether it has, and fails if not.
set -euo pipefail
cd "$(dirname "$0")/.."

stamp=.stamps/ci-passed
tree=$(git rev-parse 'HEAD^{tree}')
changes=$(git status --porcelain)

case ${1:-} in
  write)
    if [ -n "$changes" ]; then
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
    echo "usage: $0 write|check" >&2
    exit 2
    ;;
esac
