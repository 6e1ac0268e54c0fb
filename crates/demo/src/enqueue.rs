//! One job for each file.

use std::{os::unix::ffi::OsStrExt as _, path::PathBuf};

use anyhow::Context as _;
use client::Client;
use queue_core::{JobId, KindName, NewJob, QueueName};
use sha2::{Digest as _, Sha256};

use crate::digest;

/// The kind that the example worker knows.
const KIND: &str = "file.digest";

/// Jobs of one request.
const BATCH: usize = 250;

/// Enqueues a job for each file, in their order, and returns the jobs' ids in the same order.
pub(crate) async fn all(client: &Client, queue: &str, files: &[PathBuf]) -> anyhow::Result<Vec<JobId>> {
    let (queue, kind) = (QueueName::new(queue)?, KindName::new(KIND)?);
    let mut ids = Vec::with_capacity(files.len());
    for batch in files.chunks(BATCH) {
        let job = |file: &PathBuf| {
            let path = file.as_os_str().as_bytes();
            // A path may be longer than a key, and need not be text.
            let key = digest::hex(&Sha256::digest(path));
            NewJob::new(queue.clone(), kind.clone(), path.to_vec()).with_key(&key)
        };
        let jobs = batch.iter().map(job).collect::<Result<Vec<_>, _>>()?;
        for (answer, file) in client.enqueue_batch(jobs).await.context("enqueue a batch")?.into_iter().zip(batch) {
            ids.push(answer.with_context(|| format!("enqueue the job of {}", file.display()))?.job_id);
        }
    }
    Ok(ids)
}
