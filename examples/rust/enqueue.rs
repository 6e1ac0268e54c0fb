//! Enqueues a job: `cargo run -p deploy-tests --example enqueue`.

use client::{Client, ConnectOptions};
use queue_core::{KindName, NewJob, QueueName};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let client = Client::connect(&ConnectOptions::new(["http://127.0.0.1:7878"])).await?;
    let job = NewJob::new(QueueName::new("default")?, KindName::new("send_welcome")?, r#"{"user":7}"#);
    let enqueued = client.enqueue(job.with_key("welcome/7")?).await?;
    println!("job {}", enqueued.job_id);
    Ok(())
}
