#!/usr/bin/env bash
# Run what needs a GPU, tests and measurements, and write one report of all: ten minutes.
#
#     bash benchmarks/gpu.sh [REPORT]        # by default results/gpu-report.txt
#
# The report has the hardware, the versions, the commit, and of each command its output, exit code and seconds.
# Exit code: 0, 1 if a command failed, 2 if there is no GPU.
set -uo pipefail
report=$(realpath --canonicalize-missing "${1:-$(dirname "$0")/../results/gpu-report.txt}")
cd "$(dirname "$0")/.."
limit=300 # seconds of a command

if ! python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    echo "error: torch finds no CUDA device here; run this on a machine with a GPU, with a torch built for CUDA" >&2
    exit 2
fi
if ! : >"$report"; then
    exit 2
fi
kept=$(mktemp -d)
trap 'rm -rf "$kept"' EXIT
summary="exit code, seconds, command"
failed=0

run() {
    local begun=$SECONDS code
    printf '\n$ %s\n' "$*" | tee -a "$report"
    timeout --kill-after=10 "$limit" "$@" >>"$report" 2>&1 </dev/null
    code=$?
    printf 'exit code %s, %s s\n' "$code" "$((SECONDS - begun))" | tee -a "$report"
    summary+=$'\n'"$code, $((SECONDS - begun)), $*"
    ((code == 0)) || failed=1
}

train() {
    run python "$@" --n_gpus "$ranks" --device cuda --dataset synthetic --model resnet18 --lr 0.01 --epochs 3 \
        --results_dir "$kept"
}

{
    date --utc '+%Y-%m-%d %H:%M UTC'
    echo "commit $(git rev-parse HEAD 2>/dev/null || echo unknown), $(git status --short 2>/dev/null | wc -l) files changed"
} >>"$report"
run python -c 'import importlib.metadata, platform, torch
for i in range(torch.cuda.device_count()): print("GPU", i, torch.cuda.get_device_name(i))
print("torch", torch.__version__, "CUDA", torch.version.cuda, "Python", platform.python_version(), platform.platform())
dali = [one.version for one in importlib.metadata.distributions() if one.name.startswith("nvidia-dali-cuda")]
print("DALI", *dali or ["is not installed; what needs it is left out"])'
run nvidia-smi
run python -m pytest -n 0 -v -m gpu tests
gpus=$(python -c 'import torch; print(max(1, torch.cuda.device_count()))')
ranks=$((gpus > 1 ? gpus : 2))
train train.py --strategy ring_all_reduce
train ring_all_reduce_builtin.py
ranks=$gpus train fully_sharded_builtin.py # which needs a GPU for each
train train.py --strategy param_server
train train.py --strategy dgs
printf '\n%s\n' "$summary" | tee -a "$report"
echo "report in $report"
exit "$failed"
