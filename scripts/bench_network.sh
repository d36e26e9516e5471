#!/bin/sh
# What a round costs where each of four agents has a link of RATE (such as 1gbit) to a common switch.
# Needs root and iproute2. Usage: scripts/bench_network.sh PYTHON RATE [OPTION of benchmarks/exchange.py ...]
set -eu
. "$(dirname "$0")/namespaces.sh"
python=$1 rate=$2
shift 2
join 4 "$rate"
run_agents "$python" "$root/benchmarks/exchange.py" --link "$rate" --over gloo tls --links plain masked "$@"
