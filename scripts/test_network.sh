#!/bin/sh
# Train across three network namespaces with addresses of their own, as across three machines.
# Needs root and iproute2. Usage: scripts/test_network.sh PYTHON
set -eu
case $1 in */*) python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1");; *) python=$1;; esac
nodes=3
bridge=sv-bridge
port=29641
work=$(mktemp -d)
root=$(cd "$(dirname "$0")/.." && pwd)

[ "$(id -u)" -eq 0 ] || { echo "error: network namespaces need root" >&2; exit 1; }
command -v ip >/dev/null || { echo "error: ip was not found; on Debian and Ubuntu: apt install iproute2" >&2; exit 1; }

clean() {
  for node in $(seq 0 $((nodes - 1))); do ip netns del "sv-node$node" 2>/dev/null || true; done
  ip link del "$bridge" 2>/dev/null || true
  rm -rf "$work"
}
clean
trap clean EXIT INT TERM
mkdir -p "$work/result"

ip link add "$bridge" type bridge
ip link set "$bridge" up
for node in $(seq 0 $((nodes - 1))); do
  ip netns add "sv-node$node"
  ip link add "sv-out$node" type veth peer name eth0 netns "sv-node$node"
  ip link set "sv-out$node" master "$bridge" up
  ip -n "sv-node$node" addr add "10.77.0.$((10 + node))/24" dev eth0
  ip -n "sv-node$node" link set eth0 up
  ip -n "sv-node$node" link set lo up
done

pids=""
for node in $(seq 0 $((nodes - 1))); do
  PYTHONPATH="$root/src" OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=eth0 TP_SOCKET_IFNAME=eth0 \
    ip netns exec "sv-node$node" "$python" -m torch.distributed.run \
    --nnodes "$nodes" --node-rank "$node" --nproc-per-node 1 \
    --master-addr 10.77.0.10 --master-port "$port" \
    "$root/tests/integration/agent.py" training "$work/result" 20 5 -1 none \
    >"$work/node$node.log" 2>&1 &
  pids="$pids $!"
done
for pid in $pids; do
  wait "$pid" || { tail -n 40 "$work"/node*.log >&2; exit 1; }
done
PYTHONPATH="$root/src" "$python" "$root/tests/integration/compare_network.py" "$work/result" "$nodes"
