#!/usr/bin/env bash
# The Derf x Muon study at its one-GPU tier, some minutes at a time.
#   bash benchmarks/gpu_derf_muon.sh OUT [MINUTES] [OVERRIDE ...]
# Runs until it is finished or MINUTES (8) are over; then every run under way is saved, and the same command continues
# from OUT. Overrides go to launch.py. On a CPU this tries it:
#   ... model.d_model=32 model.n_layers=2 model.n_heads=1 model.d_ff=64 batch_size=4 seq_len=32 steps=20 schedule.warmup_steps=2
# PYTHON names the interpreter. Exit status: 0 finished, 3 to be continued, else what launch.py said.
set -uo pipefail
cd "$(dirname "$0")/.."
if [ $# -lt 1 ]; then
  sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
out=$1
minutes=${2:-8}
shift $(($# < 2 ? $# : 2))
# TERM makes the runs save themselves; a kernel that hangs is killed a minute later.
timeout --signal=TERM --kill-after=60 "$((minutes * 60))" \
  "${PYTHON:-.venv/bin/python}" launch.py experiment=derf_muon_t2 "runtime.output_dir=$out" "$@"
status=$?
case $status in
  124 | 130 | 137) echo "to be continued: the same command again"; exit 3 ;;
  *) exit $status ;;
esac
