//! A worker with one handler: `cargo run -p deploy-tests --example worker`.

use std::process::ExitCode;

use client::ConnectOptions;
use worker::{Context, HandlerError, Success, Worker};

async fn send_welcome(job: Context) -> Result<Success, HandlerError> {
    if job.payload().is_empty() {
        return Err(HandlerError::permanent("empty", "nobody to welcome"));
    }
    println!("welcome {:?}, attempt {}", job.payload(), job.attempt());
    Ok(Success { result: Some("sent".into()), ..Success::default() })
}

fn main() -> ExitCode {
    lifecycle::run("mailer", telemetry::TelemetryArgs::default(), async |shutdown| {
        let worker = Worker::builder()
            .connect(ConnectOptions::new(["http://127.0.0.1:7878"]))
            .queues(["default"])
            .concurrency(16)
            .handler("send_welcome", send_welcome)
            .build()?;
        worker.run(shutdown).await?;
        Ok(())
    })
}
