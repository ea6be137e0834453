#!/usr/bin/env bash
# Breaks what the service stands on, and judges what is stored by an oracle that knows nothing of its code: see
# tests/it/faults.rs (the faults) and tests/it/support/checker.rs (the judge). Says at the end what was done, in figures.
#
#   scripts/chaos.sh --short            every fault, 50 cycles of kill -9 on each database: within five minutes
#                                       (scripts/test.sh runs these, too, with 25 cycles)
#   scripts/chaos.sh --long [CYCLES]    the same with 1000 cycles on each database, or CYCLES: about half an hour
#   scripts/chaos.sh --failpoints       services with a bug planted in them, each of which must be caught; and the service with
#                                       1 % of the store's calls failing (scripts/test.sh runs these, too)
#   scripts/chaos.sh --engine           the engine's tests with 1 % of the store's calls failing; for reading, not for CI
#
# It starts the servers that it needs as scripts/test.sh does, unless it is started by it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mode=${1:-}
case "$mode" in
    --short | --failpoints | --engine) [ $# = 1 ] || { echo "scripts/chaos.sh: $mode takes nothing more" >&2; exit 2; } ;;
    --long) [[ ${2:-1000} =~ ^[0-9]+$ ]] || { echo "scripts/chaos.sh: $2 is no number of cycles" >&2; exit 2; } ;;
    -h | --help) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "scripts/chaos.sh: say --short, --long, --failpoints or --engine; see scripts/chaos.sh --help" >&2; exit 2 ;;
esac
[ -n "${REVEILLE_TEST_POSTGRES_URL:-}" ] || exec scripts/test.sh --servers scripts/chaos.sh "$@"

log=$(mktemp "${TMPDIR:-/tmp}/reveille-chaos.XXXXXX")
trap 'rm -f "$log"' EXIT
outcome=0
from=$SECONDS

begin=faults:: features=() nextest=()
case "$mode" in
    --short)
        # its cases wait more than they do: within five minutes on two processors
        export NEXTEST_TEST_THREADS=$(($(nproc) + 1))
        export RUST_TEST_THREADS=$NEXTEST_TEST_THREADS
        export REVEILLE_CHAOS_CYCLES=50
        ;;
    --long)
        export REVEILLE_CHAOS_CYCLES=${2:-1000}
        nextest=(--profile chaos)
        ;;
    --failpoints) begin=faults::failpoints:: features=(--features failpoints) ;;
    --engine)
        # What a test asks of the store by itself is spared, and a tick that fails comes again, as its loop would have it.
        # A start whose answer is lost waits for the end of its lease, which a clock that stands still never brings: such
        # a test is begun anew, and may fail for that alone. The other areas ask the store themselves at each step, so a
        # fault would be the test's own. What must hold with failing calls is judged in `faults::failpoints`.
        export REVEILLE_STORE_FAULTS=0.01
        begin=engine:: features=(--features failpoints) nextest=(--retries 3)
        ;;
esac
if cargo nextest --version >/dev/null 2>&1; then
    cargo nextest run --locked --no-fail-fast --test it "${features[@]}" "${nextest[@]}" --success-output final \
        -E "test(/^$begin/)" 2>&1 | tee "$log" || outcome=1
else
    cargo test --locked --no-fail-fast --test it "${features[@]}" -- "$begin" --show-output 2>&1 | tee "$log" || outcome=1
fi

printf '\n== what was done in %d s\n' $((SECONDS - from))
sed 's/\x1b\[[0-9;]*m//g; s/^ *//' "$log" | grep -E 'violations [0-9]+$| is caught: |^NOT RUN: ' | sort -u
[ "$outcome" = 0 ] && echo "violations 0" || echo "there are violations, or a planted bug was not caught: see above"
exit "$outcome"
