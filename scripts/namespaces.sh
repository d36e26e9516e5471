# Machines that are network namespaces with addresses of their own, joined by one bridge; to be sourced.
# Needs root and iproute2. `join N [RATE]` makes N of them, each on a link of RATE (such as 1gbit) in either
# direction; `run_agents PYTHON SCRIPT ...` starts one agent on each by torchrun. $work is a folder for results.
bridge=sv-bridge
port=29641
nodes=0
root=$(cd "$(dirname "$0")/.." && pwd)

[ "$(id -u)" -eq 0 ] || { echo "error: network namespaces need root" >&2; exit 1; }
command -v ip >/dev/null || { echo "error: ip was not found; on Debian and Ubuntu: apt install iproute2" >&2; exit 1; }
work=$(mktemp -d)

numbers() { seq 0 $((nodes - 1)); }

leave() {
  for node in $(numbers); do
    # A namespace ends when its last process has; its link must be free for the next one before.
    ip link del "sv-out$node" 2>/dev/null || true
    ip netns del "sv-node$node" 2>/dev/null || true
  done
  ip link del "$bridge" 2>/dev/null || true
  rm -rf "$work"
}

shape() { # RATE DEVICE [tc options]: a bucket of 128 KiB holds the largest packet; a queue of 50 ms
  rate=$1 device=$2
  shift 2
  tc "$@" qdisc add dev "$device" root tbf rate "$rate" burst 128kb latency 50ms
}

join() { # NODES [RATE]
  nodes=$1
  leave
  trap leave EXIT INT TERM
  mkdir -p "$work/result"
  ip link add "$bridge" type bridge
  ip link set "$bridge" up
  for node in $(numbers); do
    ip netns add "sv-node$node"
    ip link add "sv-out$node" type veth peer name eth0 netns "sv-node$node"
    ip link set "sv-out$node" master "$bridge" up
    ip -n "sv-node$node" addr add "10.77.0.$((10 + node))/24" dev eth0
    ip -n "sv-node$node" link set eth0 up
    ip -n "sv-node$node" link set lo up
    # Linux's usual congestion control, whatever this machine prefers.
    ip -n "sv-node$node" route replace 10.77.0.0/24 dev eth0 congctl cubic
    if [ -n "${2-}" ]; then
      shape "$2" "sv-out$node"
      shape "$2" eth0 -n "sv-node$node"
    fi
  done
}

run_agents() { # PYTHON SCRIPT [ARGUMENT ...]
  case $1 in */*) python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1");; *) python=$1;; esac
  shift
  pids=""
  for node in $(numbers); do
    PYTHONPATH="$root/src" OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=eth0 TP_SOCKET_IFNAME=eth0 \
      ip netns exec "sv-node$node" "$python" -m torch.distributed.run \
      --nnodes "$nodes" --node-rank "$node" --nproc-per-node 1 \
      --master-addr 10.77.0.10 --master-port "$port" "$@" 2>"$work/node$node.log" &
    pids="$pids $!"
  done
  for pid in $pids; do
    wait "$pid" || { tail -n 40 "$work"/node*.log >&2; exit 1; }
  done
}
