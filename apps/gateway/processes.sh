# Shared by `check` and `compare`: child processes, each ended by its id, and a RabbitMQ.
# shellcheck shell=bash

die() {
    printf '%s\n' "$*" >&2
    exit 1
}

# raise_files COUNT: raises the limit of open files.
raise_files() {
    local limit
    limit=$(ulimit -n)
    [[ $limit != unlimited && $limit -lt $1 ]] || return 0
    ulimit -n "$1" 2>/dev/null || die "$1 open files are needed, but the limit is $limit: try ulimit -n $1"
}

# install_packages PACKAGE…: in one step, as concurrent installations fail.
install_packages() {
    [[ $# -gt 0 ]] || return 0
    if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
        echo "not installed: $*" >&2
        return 1
    fi
    echo "installing $*"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

target_directory() {
    cargo metadata --offline --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/'
}

# --- processes -------------------------------------------------------------------------------------------

WORK=$(mktemp -d "${TMPDIR:-/tmp}/gateway-${0##*/}.XXXXXX")
NODE=${0##*/}
NODE=gateway-${NODE//[^[:alnum:]]/-}-$$@localhost # Erlang allows no dot
declare -A PIDS=() # process ids by name

# is_gone PID: whether the process has ended or is a zombie.
is_gone() {
    local state
    state=$(ps -o stat= -p "$1" 2>/dev/null) || return 0
    [[ $state == Z* || -z $state ]]
}

# ended PID SECONDS: waits until the process has ended. Kills it at the deadline, and fails.
ended() {
    local pid=$1 seconds=$2 deadline=$((SECONDS + $2))
    until is_gone "$pid"; do
        if ((SECONDS > deadline)); then
            kill -KILL "$pid" 2>/dev/null || true
            echo "  process $pid did not end within $seconds s" >&2
            return 1
        fi
        sleep 0.05
    done
}

stop() {
    local pid=${PIDS[$1]:-}
    [[ -n $pid ]] || return 0
    unset "PIDS[$1]"
    # Hides the message of the shell about the killed process.
    {
        kill "-${2:-TERM}" "$pid" || true
        ended "$pid" 20 || true
        wait "$pid" || true
    } 2>/dev/null
}

# Stops all processes but the broker, which other checks use.
end_own() {
    local name
    for name in "${!PIDS[@]}"; do
        if [[ $name != rabbitmq && $name != epmd ]]; then stop "$name" "${END_SIGNAL:-KILL}"; fi
    done
}

clean_up() {
    local status=$?
    trap - EXIT
    end_own
    stop_rabbitmq
    stop epmd
    if [[ $status == 0 ]]; then
        rm -rf "$WORK"
    else
        echo "logs are in $WORK" >&2
    fi
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# await_line FILE PATTERN PID [SECONDS]: waits for a line, while the process that writes the file runs.
await_line() {
    local file=$1 text=$2 pid=$3 deadline=$((SECONDS + ${4:-60}))
    until grep -q -- "$text" "$file" 2>/dev/null; do
        if is_gone "$pid" || ((SECONDS > deadline)); then
            tail -n 5 "${file%.*}".* >&2 || true
            die "  no line \"$text\" in $file"
        fi
        sleep 0.05
    done
}

# --- RabbitMQ --------------------------------------------------------------------------------------------

# free_ports COUNT: sets PORTS and the ports of the broker. Takes those in $GATEWAY_PORTS, if there are any.
free_ports() {
    if [[ -n ${GATEWAY_PORTS:-} ]]; then
        read -ra PORTS <<<"$GATEWAY_PORTS"
    else
        mapfile -t PORTS < <("$BIN/gateway-driver" ports $(($1 + 3)))
    fi
    [[ ${#PORTS[@]} == $(($1 + 3)) ]] || die "no free ports on 127.0.0.1"
    AMQP_PORT=${PORTS[-1]} DIST_PORT=${PORTS[-2]} EPMD_PORT=${PORTS[-3]}
    AMQP=amqp://guest:guest@127.0.0.1:$AMQP_PORT/%2f
}

RABBITMQ=/usr/lib/rabbitmq/bin/rabbitmq-server

# start_rabbitmq [LINE…]: adds the lines to its configuration; enables the plugins in $BROKER_PLUGINS.
start_rabbitmq() {
    local home=$WORK/rabbitmq
    mkdir -p "$home"
    echo "[${BROKER_PLUGINS:-}]." >"$home/enabled_plugins"
    printf '%s\n' 'loopback_users.guest = true' 'max_message_size = 200000' "$@" >"$home/rabbitmq.conf"
    if [[ -z ${PIDS[epmd]:-} ]]; then
        epmd -address 127.0.0.1 -port "$EPMD_PORT" >"$WORK/epmd.log" 2>&1 &
        PIDS[epmd]=$!
    fi
    HOME=$home \
        RABBITMQ_NODENAME=$NODE \
        RABBITMQ_NODE_IP_ADDRESS=127.0.0.1 \
        RABBITMQ_NODE_PORT=$AMQP_PORT \
        RABBITMQ_DIST_PORT=$DIST_PORT \
        ERL_EPMD_ADDRESS=127.0.0.1 \
        ERL_EPMD_PORT=$EPMD_PORT \
        RABBITMQ_MNESIA_BASE=$home/data \
        RABBITMQ_LOG_BASE=$home/log \
        RABBITMQ_PID_FILE=$home/pid \
        RABBITMQ_ENABLED_PLUGINS_FILE=$home/enabled_plugins \
        RABBITMQ_CONFIG_FILE=$home/rabbitmq.conf \
        RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS='-kernel inet_dist_use_interface {127,0,0,1}' \
        setsid "$RABBITMQ" >>"$WORK/rabbitmq.log" 2>&1 &
    PIDS[rabbitmq]=$!
    local pid=$! deadline=$((SECONDS + 180))
    until "$BIN/gateway-driver" await "$AMQP" 1 2>/dev/null; do
        if is_gone "$pid" || ((SECONDS > deadline)); then
            cat "$WORK/rabbitmq.log" >&2
            die "  RabbitMQ does not start"
        fi
    done
}

ctl() {
    HOME=$WORK/rabbitmq RABBITMQ_NODENAME=$NODE ERL_EPMD_PORT=$EPMD_PORT \
        "${RABBITMQ%-server}ctl" --quiet "$@" >>"$WORK/rabbitmqctl.log" 2>&1
}

# The script may start the Erlang VM or become it: the pid file has the id of the VM.
stop_rabbitmq() {
    [[ -n ${PIDS[rabbitmq]:-} ]] || return 0
    PIDS[rabbitmq]=$(cat "$WORK/rabbitmq/pid" 2>/dev/null || echo "${PIDS[rabbitmq]}")
    stop rabbitmq "${1:-TERM}"
    rm -f "$WORK/rabbitmq/pid"
}
