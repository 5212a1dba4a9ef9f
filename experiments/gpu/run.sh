#!/bin/sh
# What the project does on an accelerator: tests, then benchmarks; at most eight minutes.
#   experiments/gpu/run.sh OUTPUT [--device cuda] [--quick] [--wheels FOLDER] [--data-root FOLDER]
set -eu
usage() { sed -n 3p "$0" | cut -c5- >&2; exit 2; }
[ $# -ge 1 ] || usage
output=$1 device=cuda quick="" wheels="" data=${FCL_DATA:-data}
shift
while [ $# -gt 0 ]; do
    case $1 in
        --quick) quick=--quick; shift; continue ;;
        --device) device=${2:-} ;;
        --wheels) wheels=${2:-} ;;
        --data-root) data=${2:-} ;;
        *) usage ;;
    esac
    [ $# -ge 2 ] || usage
    shift 2
done
mkdir -p "$output"
output=$(cd "$output" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)
python=${PYTHON:-python3}
# The machine's own torch stays; what it lacks comes from files, as it may be offline.
if [ -n "$wheels" ]; then
    "$python" -m pip install -q --no-index --no-deps --upgrade --target "$output/site" \
        "$wheels"/*.whl
    export PYTHONPATH="$output/site${PYTHONPATH:+:$PYTHONPATH}"
fi
cd "$root"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" FCL_TEST_DEVICE="$device" OMP_NUM_THREADS=1
chosen="gpu"
tests=150
if [ -n "$quick" ]; then
    chosen="gpu and not ray"
    tests=60
fi
# Tests that fail, or take too long, do not keep the benchmarks from what they measure.
status=0
timeout "$tests" "$python" -m pytest -p no:cacheprovider -m "$chosen" tests/simulation/test_gpu.py \
    ${quick:+-k "fedavg or bfloat16"} >"$output/tests.txt" 2>&1 || status=$?
tail -n 3 "$output/tests.txt"
"$python" experiments/gpu/benchmark.py "$output" --device "$device" --data-root "$data" $quick
exit "$status"
