#!/usr/bin/env bash
# Usage: leftover_processes.sh NAME=VALUE
#
# Fails, and lists them, if processes that inherited this environment variable are still alive
# after ten seconds. The processes above this one are not counted.
set -euo pipefail
mark=$1

own=" $$ "
pid=$$
while [ "$pid" -gt 1 ]; do
  pid=$(awk '/^PPid:/ { print $2 }' "/proc/$pid/status")
  own="$own$pid "
done

leftover() {
  local environ pid
  for environ in /proc/[0-9]*/environ; do
    pid=${environ#/proc/}
    pid=${pid%/environ}
    case $own in *" $pid "*) continue ;; esac
    # A process may end, or belong to someone else, while it is looked at.
    if grep -qzxF -- "$mark" "$environ" 2>/dev/null; then
      echo "$pid"
    fi
  done 2>/dev/null
}

for _ in 1 2 3 4 5 6 7 8 9 10; do
  pids=$(leftover || true)
  alive=
  for pid in $pids; do
    if [ -e "/proc/$pid" ]; then alive="$alive $pid"; fi
  done
  if [ -z "$alive" ]; then
    echo "no process is left behind"
    exit 0
  fi
  sleep 1
done

echo "processes are left behind:" >&2
for pid in $alive; do
  echo "  $pid: $(tr '\0' ' ' <"/proc/$pid/cmdline" || true)" >&2
done
exit 1
