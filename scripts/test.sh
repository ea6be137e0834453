#!/usr/bin/env bash
# Passes all tests on a fresh Debian or Ubuntu machine that has Rust: installs what is missing, starts private
# throw-away servers, checks the format, runs clippy and builds the documentation with warnings as errors, runs the
# tests, among them those that plant a bug, which must be found; stops what it started.
#
#   scripts/test.sh                     everything
#   scripts/test.sh -- FILTER…          only the tests whose names match (no format, no clippy)
#   REVEILLE_TEST_IMAGES=$PWD/docs/images scripts/test.sh -- browser    keeps the pictures of the pages
#   scripts/test.sh --servers [CMD…]    only the servers, and CMD (default: a shell) with their addresses in its environment
#
# It never touches a PostgreSQL or Redis of the machine: its own listen on free ports of 127.0.0.1, keep their files in
# a temporary directory, and go with it. They run with fsync on, because that is what the promises are about.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mode=all
case "${1:-}" in
    '') ;;
    --) mode=some; shift; [ $# -gt 0 ] || { echo "scripts/test.sh: name the tests after --" >&2; exit 2; } ;;
    --servers) mode=servers; shift ;;
    -h | --help) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "scripts/test.sh: unknown argument $1; see scripts/test.sh --help" >&2; exit 2 ;;
esac

say() { printf '\n== %s\n' "$*" >&2; }
fail() { printf '\nscripts/test.sh: %s\n' "$1" >&2; [ -z "${2:-}" ] || printf 'hint: %s\n' "$2" >&2; exit 1; }

# ---------------------------------------------------------------- what it needs

# the newest PostgreSQL programs, which Debian keeps out of PATH
postgres_programs() {
    local found
    found=$(find /usr/lib/postgresql -mindepth 3 -maxdepth 3 -path '*/bin/initdb' 2>/dev/null | sort -V | tail -n 1)
    [ -n "$found" ] || found=$(command -v initdb || true)
    [ -z "$found" ] || dirname "$found"
}

# what steps the clock of a process
faketime_library() {
    find /usr/lib -name libfaketimeMT.so.1 2>/dev/null | head -n 1
}

missing_packages() {
    [ -n "$(postgres_programs)" ] || echo postgresql
    command -v redis-server >/dev/null || echo redis-server
    [ -x /usr/bin/python3 ] && /usr/bin/python3 -c 'import aiosmtpd' 2>/dev/null || echo python3-aiosmtpd
    [ -x /usr/bin/python3 ] && /usr/bin/python3 -c 'import ensurepip' 2>/dev/null || echo python3-venv
    command -v cc >/dev/null || echo build-essential
    [ -n "$(faketime_library)" ] || echo libfaketime
    command -v chromium >/dev/null || echo chromium
    command -v node >/dev/null || echo nodejs
    command -v npm >/dev/null || echo npm
}

install_packages() {
    local as_root=() policy=/usr/sbin/policy-rc.d no_cluster=/etc/postgresql-common/createcluster.d/reveille-tests.conf
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; } ||
            fail "missing packages: $*" "run as root: apt-get install $*"
        as_root=(sudo)
    fi
    command -v apt-get >/dev/null || fail "missing: $*, and this machine has no apt-get" "install PostgreSQL, Redis and aiosmtpd (for python3) by hand"
    say "installing $*"
    # The packages would make a cluster and start services; both stay off while we install, and the machine is left as it was.
    local made_policy=''
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" >/dev/null
        "${as_root[@]}" chmod 755 "$policy"
        made_policy=yes
    fi
    "${as_root[@]}" mkdir -p "$(dirname "$no_cluster")"
    echo "create_main_cluster = false" | "${as_root[@]}" tee "$no_cluster" >/dev/null
    local ok=yes
    { "${as_root[@]}" apt-get update -q && "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$@"; } >&2 || ok=''
    "${as_root[@]}" rm -f "$no_cluster"
    [ -z "$made_policy" ] || "${as_root[@]}" rm -f "$policy"
    [ -n "$ok" ] || fail "apt-get could not install $*"
    case " $* " in
        *' redis-server '*) "${as_root[@]}" systemctl disable --quiet redis-server 2>/dev/null || true ;;
    esac
}

command -v cargo >/dev/null || fail "cargo is missing" "install Rust with rustup"
mapfile -t missing < <(missing_packages)
[ ${#missing[@]} = 0 ] || install_packages "${missing[@]}"

# what the tests take from npm, as its lock file has it: the driver of the browser (it brings no browser of its own), an
# OAuth server, what makes a client of TypeScript, and what makes MCP servers and measures both sides of the protocol
from_npm() {
    local dir=$1
    [ ! "$dir/node_modules/.package-lock.json" -nt "$dir/package-lock.json" ] || return 0
    (cd "$dir" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error) >&2 ||
        fail "npm could not install what $dir/package-lock.json names" "it needs Node 20 or later, and the npm registry once"
}
# what they take from the Python Package Index, each at the version that is written down: what validates the OpenAPI
# document and requests to models, what makes a client of Python and checks its types, the clients of the providers
# of models, and the schemas that the files of deploy/ are held to
from_pip() {
    local dir=$1 venv=$1/.venv
    [ ! "$venv/.installed" -nt "$dir/requirements.txt" ] || return 0
    { rm -rf "$venv" && /usr/bin/python3 -m venv "$venv" &&
        "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps -r "$dir/requirements.txt" &&
        "$venv/bin/pip" --disable-pip-version-check check && touch "$venv/.installed"; } >&2 ||
        fail "pip could not install what $dir/requirements.txt names" "it needs Python 3.11 or later, and the Python Package Index once"
}
from_npm tests/browser
from_npm tests/oauth
from_npm tests/clients
from_npm tests/mcp
from_pip tests/clients
from_pip tests/deploy
# the conformance suite of MCP needs Node 22, which comes from npm where the machine's is older
REVEILLE_TEST_NODE=$(command -v node)
if [ "$(node -p 'process.versions.node.split(".")[0]')" -lt 22 ]; then
    from_npm tests/node
    REVEILLE_TEST_NODE=$(find "$PWD/tests/node/node_modules" -path '*/bin/node' -type f 2>/dev/null || true)
    [ -n "$REVEILLE_TEST_NODE" ] || fail "Node is too old for the tests, and npm has no Node 22 for this machine" "install Node 22 or later"
fi
export REVEILLE_TEST_NODE
REVEILLE_TEST_CHROMIUM=$(command -v chromium)
export REVEILLE_TEST_CHROMIUM
REVEILLE_TEST_FAKETIME=$(faketime_library)
export REVEILLE_TEST_FAKETIME
bin=$(postgres_programs)

# ---------------------------------------------------------------- throw-away servers

dir=$(mktemp -d "${TMPDIR:-/tmp}/reveille-tests.XXXXXX")
redis_pid=''
stop() {
    local code=$?
    trap - EXIT INT TERM
    [ ! -e "$dir/postgres/postmaster.pid" ] || postgres_user "$bin/pg_ctl" -D "$dir/postgres" -m immediate -s stop || true
    [ -z "$redis_pid" ] || { kill "$redis_pid" 2>/dev/null && wait "$redis_pid" 2>/dev/null; } || true
    rm -rf "$dir"
    exit "$code"
}
trap stop EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
chmod 711 "$dir" # PostgreSQL's own user has to pass

# initdb and postgres refuse root
postgres_user() {
    if [ "$(id -u)" != 0 ]; then "$@"; else (cd "$dir" && runuser -u "$postgres_owner" -- "$@"); fi
}

free_port() { /usr/bin/python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
password() { od -An -N16 -tx1 /dev/urandom | tr -d ' \n'; }

start_postgres() {
    postgres_owner=postgres
    id "$postgres_owner" >/dev/null 2>&1 || postgres_owner=nobody
    local owner_password role_password port
    owner_password=$(password) role_password=$(password)
    mkdir "$dir/postgres"
    printf '%s\n' "$owner_password" >"$dir/postgres.password"
    if [ "$(id -u)" = 0 ]; then chown "$postgres_owner" "$dir/postgres" "$dir/postgres.password"; fi
    chmod 600 "$dir/postgres.password"
    postgres_user "$bin/initdb" -D "$dir/postgres" -U owner -A scram-sha-256 --pwfile="$dir/postgres.password" \
        -E UTF8 --locale=C >"$dir/initdb.log" 2>&1 || { cat "$dir/initdb.log" >&2; fail "initdb failed"; }
    for _ in 1 2 3 4 5; do # another process may take the port first
        port=$(free_port)
        cat >"$dir/postgres.conf" <<CONF
listen_addresses = '127.0.0.1'
port = $port
unix_socket_directories = ''
max_connections = 400
shared_buffers = 256MB
max_wal_size = 4GB
fsync = on
synchronous_commit = on
log_min_messages = warning
CONF
        cat "$dir/postgres.conf" | postgres_user tee "$dir/postgres/postgresql.conf" >/dev/null
        if postgres_user "$bin/pg_ctl" -D "$dir/postgres" -l "$dir/postgres/log" -w -s start; then
            # the service's role: neither superuser nor BYPASSRLS, so that row-level security is what it is in production
            PGPASSWORD=$owner_password psql -h 127.0.0.1 -p "$port" -U owner -d postgres -q -v ON_ERROR_STOP=1 -c \
                "create role reveille login createdb nosuperuser nobypassrls password '$role_password'"
            export REVEILLE_TEST_POSTGRES_URL="postgres://reveille:$role_password@127.0.0.1:$port/postgres"
            export REVEILLE_TEST_POSTGRES_OWNER_URL="postgres://owner:$owner_password@127.0.0.1:$port/postgres"
            return
        fi
    done
    cat "$dir/postgres/log" >&2
    fail "PostgreSQL did not start"
}

start_redis() {
    local port
    for _ in 1 2 3 4 5; do
        port=$(free_port)
        mkdir -p "$dir/redis"
        redis-server --bind 127.0.0.1 --port "$port" --dir "$dir/redis" --appendonly yes --save '' \
            --maxmemory-policy noeviction --logfile "$dir/redis/log" --daemonize no &
        redis_pid=$!
        for _ in $(seq 100); do
            kill -0 "$redis_pid" 2>/dev/null || break
            if [ "$(redis-cli -h 127.0.0.1 -p "$port" ping 2>/dev/null)" = PONG ]; then
                export REVEILLE_TEST_REDIS_URL="redis://127.0.0.1:$port"
                return
            fi
            sleep 0.05
        done
    done
    cat "$dir/redis/log" >&2
    fail "Redis did not start"
}

PATH="$bin:$PATH"
start_postgres
start_redis

if [ "$mode" = servers ]; then
    printf 'REVEILLE_TEST_POSTGRES_URL=%s\nREVEILLE_TEST_POSTGRES_OWNER_URL=%s\nREVEILLE_TEST_REDIS_URL=%s\n' \
        "$REVEILLE_TEST_POSTGRES_URL" "$REVEILLE_TEST_POSTGRES_OWNER_URL" "$REVEILLE_TEST_REDIS_URL" >&2
    [ $# -gt 0 ] || set -- "${SHELL:-bash}"
    "$@"
    exit
fi

# ---------------------------------------------------------------- the checks, each with the time it took

took=()
step() {
    local name=$1 from=$SECONDS
    shift
    say "$name"
    "$@" || fail "$name failed after $((SECONDS - from)) s"
    took+=("$(printf '%-8s %4d s' "$name" $((SECONDS - from)))")
}

# One build for all tests: the bugs of the feature `failpoints` are compiled in, and asleep in each process that is not told to
# have one (src/base/failpoint.rs). Clippy and the documentation are without it, as a release is.
build=(--locked --features failpoints)

# Runs the tests, shows them, and keeps what was printed for the count. Many wait more than they compute, so one more runs at
# a time than there are processors.
export NEXTEST_TEST_THREADS=${NEXTEST_TEST_THREADS:-$(($(nproc) + 1))}
tests() {
    if cargo nextest --version >/dev/null 2>&1; then
        cargo nextest run "${build[@]}" --no-fail-fast --color "$([ -t 1 ] && echo always || echo never)" "$@" 2>&1 | tee "$dir/tests.log"
    else
        cargo test "${build[@]}" --no-fail-fast "$@" 2>&1 | tee "$dir/tests.log"
    fi
}

# `N passed, N failed`, added up over nextest's summary or the summaries of each test binary.
count() {
    sed 's/\x1b\[[0-9;]*m//g' "$dir/tests.log" | awk '
        /^test result:/ { for (i = 1; i < NF; i++) { if ($(i + 1) ~ /^passed/) passed += $i; if ($(i + 1) ~ /^failed/) failed += $i } }
        /^ *Summary \[/ { for (i = 1; i < NF; i++) { if ($(i + 1) ~ /^passed/) passed = $i; if ($(i + 1) ~ /^(failed|timed)/) failed += $i } }
        END { printf "%d passed, %d failed\n", passed, failed }'
}

if [ "$mode" = all ]; then
    step format cargo fmt --check
    step clippy cargo clippy --locked --all-targets -- -D warnings
    # links of private items, too: comments of private items cite each other
    step docs env RUSTDOCFLAGS='-D warnings' cargo doc --locked --no-deps --lib --document-private-items --quiet
fi
step build cargo test "${build[@]}" --no-run --quiet
outcome=0
from=$SECONDS
say tests
tests "$@" || outcome=1
took+=("$(printf '%-8s %4d s' tests $((SECONDS - from)))")

say "times"
printf '%s\n' "${took[@]}"
printf '\n%s\n' "$(count)"
# Tests that passed at the second attempt only (.config/nextest.toml).
flaky=$(sed 's/\x1b\[[0-9;]*m//g' "$dir/tests.log" | awk '/^ *FLAKY /' | sort -u)
[ -z "$flaky" ] || printf 'to be mended, they passed at the second attempt only:\n%s\n' "$flaky"
[ "$(count)" != "0 passed, 0 failed" ] || fail "no test ran"
exit $outcome
