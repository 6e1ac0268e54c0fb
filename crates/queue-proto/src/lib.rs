//! Generated messages of `fencepost.v1`, and their conversions to and from the domain.
//!
//! Incoming messages become domain values by `TryFrom`, which names the field that is wrong; outgoing ones are made by
//! `From`. The API reference is the `.proto` files themselves.

/// Generated from `proto/fencepost/v1`.
#[expect(missing_docs, reason = "the reference is in the .proto files")]
#[expect(clippy::pedantic, unused_qualifications, reason = "generated")]
pub mod v1 {
    tonic::include_proto!("fencepost.v1");
}

mod codec;
mod duration;
mod job;
mod lease;
mod outcome;

pub use duration::{millis, to_duration, to_timestamp};
pub use lease::lease_ref;

/// The compiled `.proto` files, for server reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
