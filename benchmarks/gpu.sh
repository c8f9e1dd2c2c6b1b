#!/usr/bin/env bash
# What one GPU does, some minutes at a time, with no network.
#   bash benchmarks/gpu.sh OUT [MINUTES] [--tiny] [--parts step,norms]
# Parts: step (124M: tokens/s, part of the peak), streams (mHC with and without the kernel), sweep (64 tiny runs at once),
# norms (bandwidth against a copy), xiong (the whole experiment). Each ends as OUT/PART.json; the same command continues.
# --tiny tries everything small, on a CPU. PYTHON names the interpreter.
# Exit status: 0 finished, 3 to be continued, 1 a part failed (the others are made).
set -uo pipefail
if [ $# -lt 1 ]; then
  sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
mkdir -p "$1" || exit 1
out=$(cd "$1" && pwd)
minutes=8
shift
case "${1:-}" in
  [0-9]*) minutes=$1; shift ;;
esac
cd "$(dirname "$0")/.."
# The kernel would share the device's memory with nobody else here.
export XLA_PYTHON_CLIENT_MEM_FRACTION="${XLA_PYTHON_CLIENT_MEM_FRACTION:-0.9}"
exec "${PYTHON:-.venv/bin/python}" -m benchmarks.accelerator "$out" --minutes "$minutes" "$@"
