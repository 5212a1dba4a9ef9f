#!/usr/bin/env bash
# A real federation on this machine: a server and two clients with TLS and keys, and a
# run of FedAvg on digits. You see the certificates, the progress of the run and where
# its report is. Needs the extra `deploy`.
#
#   examples/real_federation.sh FOLDER
#
# Environment: ROUNDS (1), PORT (9092) and CONTROL_PORT (9093). On several machines each
# block runs where its client is; docs/howto/deploy.md says what to copy.
set -euo pipefail
folder=$(mkdir -p "${1:?the folder for keys, state and results}" && cd "$1" && pwd)
rounds=${ROUNDS:-1} port=${PORT:-9092} control=${CONTROL_PORT:-9093}
cd "$folder"

started=()
trap 'kill "${started[@]}" 2>/dev/null || true; wait' EXIT
trap 'exit 143' TERM INT

fcl certs certs --host localhost --clients 2

fcl server --certs certs --port "$port" --control-port "$control" >server.log 2>&1 &
started+=($!)

# A client is let in once its key is registered.
until grep -q "registered client-1" server.log; do
    kill -0 "${started[0]}" || { cat server.log; exit 1; }
    sleep 0.2
done

for number in 0 1; do
    fcl client --server "localhost:$port" --certs certs --number "$number" \
        >"client-$number.log" 2>&1 &
    started+=($!)
done

fcl run --server "127.0.0.1:$control" --certs certs --strategy fedavg --dataset digits \
    --clients 2 --tasks 1 --rounds "$rounds" --output results
