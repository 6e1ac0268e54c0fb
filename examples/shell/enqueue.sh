#!/bin/sh
# Enqueues a job with nothing but grpcurl: examples/shell/enqueue.sh KIND PAYLOAD KEY [HOST:PORT]
#
# grpcurl asks the scheduler for its methods, so it needs no .proto files. Bytes are base64 in JSON.
set -eu
kind=$1 payload=$2 key=$3 scheduler=${4-127.0.0.1:7878}

grpcurl -plaintext -H "authorization: Bearer ${FENCEPOST_TOKEN-}" -d "{\"job\": {
    \"queue\": \"default\", \"kind\": \"$kind\", \"idempotency_key\": \"$key\",
    \"payload\": \"$(printf %s "$payload" | base64 -w 0)\"
}}" "$scheduler" fencepost.v1.QueueService/Enqueue
