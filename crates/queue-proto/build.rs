//! Generates the messages and services of `proto/fencepost/v1`.

use std::error::Error;
use std::path::Path;
use std::{env, fs};

const FILES: [&str; 4] = ["job", "queue_service", "work_service", "maintenance_service"];

#[expect(clippy::disallowed_methods, reason = "cargo tells build scripts by environment")]
fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    println!("cargo::rerun-if-changed={}", root.display());
    let files = FILES.map(|name| root.join(format!("fencepost/v1/{name}.proto")));
    let descriptors = protox::compile(files, [&root])?;
    fs::write(Path::new(&env::var("OUT_DIR")?).join("descriptors.bin"), descriptors_bytes(&descriptors))?;
    tonic_prost_build::configure().bytes(".").codec_path("crate::codec::Codec").compile_fds(descriptors)?;
    Ok(())
}

fn descriptors_bytes(descriptors: &impl prost::Message) -> Vec<u8> {
    descriptors.encode_to_vec()
}
