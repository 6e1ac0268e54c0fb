"""Enqueues a job, waits for its end and prints its result.

    pip install -r examples/python/requirements.txt
    python examples/python/enqueue.py [--scheduler HOST:PORT] [--queue QUEUE] KIND PAYLOAD KEY

The key makes it safe to run this again: the same key finds the first job. Prints the handler's result on standard
output and exits with 0 if the job succeeded. A token, if the scheduler wants one, is taken from FENCEPOST_TOKEN.
"""

import argparse
import os
import pathlib
import sys
import time

import grpc

# Reads the .proto files at run time. A program of your own would rather generate its stubs when it is built.
sys.path.append(str(pathlib.Path(__file__).parents[2] / "proto"))
v1, services = grpc.protos_and_services("fencepost/v1/queue_service.proto")
job_v1 = grpc.protos("fencepost/v1/job.proto")

ENDED = {job_v1.JOB_STATE_SUCCEEDED, job_v1.JOB_STATE_DEAD, job_v1.JOB_STATE_CANCELLED}


def main():
    parser = argparse.ArgumentParser(description="Enqueue a job and wait for it.")
    parser.add_argument("--scheduler", default="127.0.0.1:7878", metavar="HOST:PORT")
    parser.add_argument("--ca", help="certificate of the authority that signed the scheduler's: use TLS")
    parser.add_argument("--queue", default="default")
    parser.add_argument("--wait", type=float, default=60, metavar="SECONDS", help="how long to wait for the end")
    parser.add_argument("kind")
    parser.add_argument("payload")
    parser.add_argument("key")
    args = parser.parse_args()
    token = os.environ.get("FENCEPOST_TOKEN")
    metadata = [("authorization", f"Bearer {token}")] if token else []

    with open_channel(args) as channel:
        queue = services.QueueServiceStub(channel)
        new_job = job_v1.NewJob(
            queue=args.queue, kind=args.kind, payload=args.payload.encode(), idempotency_key=args.key
        )
        # A call with a key may always be repeated, so one that could not be answered is no reason to give up.
        enqueued = queue.Enqueue(v1.EnqueueRequest(job=new_job), metadata=metadata, timeout=10, wait_for_ready=True)
        print(f"job {enqueued.job_id} ({'was there' if enqueued.duplicate else 'new'})", file=sys.stderr)
        job = wait(queue, enqueued.job_id, metadata, args.wait)
    state = job_v1.JobState.Name(job.state).removeprefix("JOB_STATE_").lower()
    print(f"{state} after {len(job.attempts)} attempt(s) {job.dead_reason}".rstrip(), file=sys.stderr)
    print(job.result.decode(errors="replace"))
    return 0 if job.state == job_v1.JOB_STATE_SUCCEEDED else 1


def open_channel(args):
    if args.ca:
        return grpc.secure_channel(args.scheduler, grpc.ssl_channel_credentials(pathlib.Path(args.ca).read_bytes()))
    return grpc.insecure_channel(args.scheduler)


def wait(queue, job_id, metadata, seconds):
    """Asks until the job has ended, at most every half second."""
    deadline = time.monotonic() + seconds
    pause = 0.02
    while True:
        request = v1.GetJobRequest(job_id=job_id)
        job = queue.GetJob(request, metadata=metadata, timeout=10, wait_for_ready=True).job
        if job.state in ENDED or time.monotonic() > deadline:
            return job
        time.sleep(pause)
        pause = min(2 * pause, 0.5)


if __name__ == "__main__":
    sys.exit(main())
