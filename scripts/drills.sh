#!/usr/bin/env bash
# The long drills: a test of the usual suite with far larger numbers. For an evening or a release, not for each change.
#
#   scripts/drills.sh faults [CYCLES]   every fault, with 1000 cycles of kill -9 on each database, or CYCLES: half an hour.
#                                       It is scripts/chaos.sh --long. Short case, 25 cycles: faults::killed
#   scripts/drills.sh turns [ROUNDS]    kill -9 at each place of an agent's turn, around calls that people have a say in or have
#                                       granted, around questions of MCP servers, and around summaries, 10 rounds or ROUNDS on
#                                       each database: an hour.
#                                       Short case, one round: faults::turns, approved, granted, asked and summarised
#   scripts/drills.sh budgets [RUNS]    2000 runs, or RUNS, on two instances that share one budget of a day: a minute.
#                                       Short case, 100 runs: engine::budgets::runs_on_two_instances
#   scripts/drills.sh events [EVENTS]   a million events, or EVENTS, through three instances that are killed: half an hour.
#                                       Short case, 40000 events: events::storm
#   scripts/drills.sh deliveries [DELIVERIES]
#                                       10000 deliveries, or DELIVERIES, through a channel that misbehaves in every way, by
#                                       instances that die: five minutes. Short case, 1500: engine::outbox
#   scripts/drills.sh mcp [RUNS]        1000 runs, or RUNS, that call the tools of two MCP servers, which are one process each:
#                                       some minutes. Short case, 20 runs: mcp::supervision
#   scripts/drills.sh guide             the diffs of CONTRIBUTING.md, applied to the last commit in a worktree of its own and compiled
#                                       there, tests and examples too: some minutes; in CARGO_TARGET_DIR, or target/guide.
#                                       Short case, as text: tidy::guide
#   scripts/drills.sh all               all of them, one after the other, with the numbers above
#
# It starts the servers that it needs as scripts/test.sh does, unless it is started by it. Each drill ends with 0 or 1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

refuse() { echo "scripts/drills.sh: $1" >&2; exit 2; }

drill=${1:-}
case "$drill" in
    faults | turns | budgets | events | deliveries | mcp) [ $# -le 2 ] || refuse "$drill takes one number and nothing more" ;;
    guide | all) [ $# = 1 ] || refuse "$drill takes nothing more" ;;
    -h | --help) sed -n '2,24s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) refuse "say faults, turns, budgets, events, deliveries, mcp, guide or all; see scripts/drills.sh --help" ;;
esac
number=${2:-}
[[ ${number:-1} =~ ^[1-9][0-9]*$ ]] || refuse "$number is not a number of 1 or more"
case "$drill" in
    budgets) [ "${number:-10}" -ge 10 ] && [ "${number:-10}" -le 10000 ] || refuse "budgets takes 10 to 10000 runs" ;;
    deliveries) [ "${number:-1000}" -ge 1000 ] || refuse "deliveries takes 1000 or more" ;;
    events) [ $((${number:-500} % 500)) = 0 ] || refuse "events needs a multiple of 500, which is what one request carries" ;;
esac
[ "$drill" = guide ] || [ -n "${REVEILLE_TEST_POSTGRES_URL:-}" ] || exec scripts/test.sh --servers scripts/drills.sh "$@"

# One test without its usual limit of time, by the build of scripts/test.sh.
run_test() {
    if cargo nextest --version >/dev/null 2>&1; then
        cargo nextest run --locked --features failpoints --profile chaos --test it --success-output final -E "test(=$1)"
    else
        cargo test --locked --features failpoints --test it -- --exact "$1" --show-output
    fi
}

faults() { scripts/chaos.sh --long "${1:-1000}"; }

turns() {
    local test
    for test in turns::on_{sqlite,postgres}_a_turn_that_is_killed_at_any_write_repeats_and_loses_no_call \
        approved::on_{sqlite,postgres}_an_approved_call_is_made_once_wherever_the_service_is_killed \
        granted::on_{sqlite,postgres}_a_granted_call_uses_its_grant_once_wherever_the_service_is_killed \
        asked::on_{sqlite,postgres}_a_server_gets_an_answer_at_most_once_wherever_the_service_is_killed \
        summarised::on_{sqlite,postgres}_a_run_with_a_summary_ends_right_wherever_the_service_is_killed; do
        REVEILLE_DRILL_TURNS=${1:-10} run_test "faults::$test" || return
    done
}

budgets() {
    REVEILLE_DRILL_RUNS=${1:-2000} \
        run_test engine::budgets::runs_on_two_instances_spend_no_more_than_their_tenant_s_day
}

events() {
    REVEILLE_DRILL_EVENTS=${1:-1000000} \
        run_test events::storm::events_through_three_instances_that_are_killed_make_one_run_for_each_match
}

deliveries() {
    local database
    for database in sqlite postgres; do
        REVEILLE_DRILL_DELIVERIES=${1:-10000} \
            run_test "engine::outbox::each_delivery_through_a_sick_channel_ends_in_one_honest_state::$database" || return
    done
}

mcp() {
    REVEILLE_DRILL_MCP_RUNS=${1:-1000} run_test mcp::supervision::runs_share_one_process_per_server
}

guide() (
    root=$PWD
    target=$(realpath -m "${CARGO_TARGET_DIR:-target/guide}")
    dir=$(mktemp -d "${TMPDIR:-/tmp}/reveille-guide.XXXXXX") || exit
    trap 'cd "$root"; git worktree remove --force "$dir/tree" || true; rm -rf "$dir"' EXIT
    git worktree add --quiet --detach "$dir/tree" HEAD &&
        cd "$dir/tree" &&
        awk '/^```/ { in_diff = /^```diff$/; next } in_diff' CONTRIBUTING.md | git apply - &&
        CARGO_TARGET_DIR=$target cargo check --all-targets --locked
)

outcome=0
case "$drill" in
    all) for each in guide faults turns budgets events deliveries mcp; do "$each" || outcome=1; done ;;
    *) "$drill" "$number" || outcome=1 ;;
esac
exit "$outcome"
