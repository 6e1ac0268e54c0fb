"""Enqueues a job, waits for its end and prints its result.

    pip install -r examples/python/requirements.txt
    python examples/python/enqueue.py [--scheduler HOST:PORT] [--queue QUEUE] KIND PAYLOAD KEY

The key makes it safe to run this again: the same key finds the first job. Prints the handler's result on standard
output, all else on standard error. A token, if the scheduler wants one, is taken from FENCEPOST_TOKEN.

Exit status: 0 the job succeeded, 1 it ended otherwise, 2 the call was refused or not answered, 3 it has not ended yet.
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
    try:
        job = run(args)
    except grpc.RpcError as error:
        say(failure(error, args.scheduler))
        return 2
    return report(job, args)


def run(args):
    """Enqueues the job, and returns it as it is at its end or when the waiting is over."""
    token = os.environ.get("FENCEPOST_TOKEN")
    # A call with a key may always be repeated, so a scheduler that is just being restarted is waited for.
    options = {"timeout": 10, "wait_for_ready": True, "metadata": [("authorization", f"Bearer {token}")] if token else []}
    with open_channel(args) as channel:
        queue = services.QueueServiceStub(channel)
        new_job = job_v1.NewJob(
            queue=args.queue, kind=args.kind, payload=args.payload.encode(), idempotency_key=args.key
        )
        enqueued = queue.Enqueue(v1.EnqueueRequest(job=new_job), **options)
        say(f"job {enqueued.job_id} ({'was there' if enqueued.duplicate else 'new'})")
        deadline = time.monotonic() + args.wait
        pause = 0.02
        while True:
            job = queue.GetJob(v1.GetJobRequest(job_id=enqueued.job_id), **options).job
            if job.state in ENDED or time.monotonic() > deadline:
                return job
            time.sleep(pause)
            pause = min(2 * pause, 0.5)


def open_channel(args):
    if args.ca:
        return grpc.secure_channel(args.scheduler, grpc.ssl_channel_credentials(pathlib.Path(args.ca).read_bytes()))
    return grpc.insecure_channel(args.scheduler)


def report(job, args):
    """Says what became of the job, and returns the exit status."""
    state = job_v1.JobState.Name(job.state).removeprefix("JOB_STATE_").lower()
    last = job.attempts[-1].error.strip() if job.attempts else ""
    if job.state == job_v1.JOB_STATE_READY:
        say(f"still waiting: is a worker with a handler for {args.kind} running on the queue {args.queue}?")
    elif job.state not in ENDED:
        say(": ".join(filter(None, [f"still {state} after {len(job.attempts)} attempt(s)", last])))
    elif job.state == job_v1.JOB_STATE_SUCCEEDED:
        say(f"{state} after {len(job.attempts)} attempt(s)")
        print(job.result.decode(errors="replace"))
        return 0
    else:
        say(": ".join(filter(None, [f"{state} after {len(job.attempts)} attempt(s)", job.dead_reason, last])))
        return 1
    return 3


def failure(error, scheduler):
    """One line for a call that was refused or not answered."""
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return f"no answer from {scheduler}: is a scheduler running there? ({error.details()})"
    return f"refused: {error.code().name}: {error.details()}"


def say(text):
    print(text, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
