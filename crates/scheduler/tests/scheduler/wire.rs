//! Calls that send any bytes as a message.

use std::net::SocketAddr;

use bytes::{Buf, BufMut};
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Request, Status};

use crate::setup::channel;

#[derive(Default)]
struct Plain;

impl Codec for Plain {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Plain {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, target: &mut EncodeBuf<'_>) -> Result<(), Status> {
        target.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Plain {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(source.copy_to_bytes(source.remaining()).to_vec()))
    }
}

/// Makes a unary call of a method with these bytes as its request.
pub async fn call(address: SocketAddr, method: &'static str, message: &[u8]) -> Result<Vec<u8>, Status> {
    let mut client = Grpc::new(channel(address));
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let path = PathAndQuery::from_static(method);
    Ok(client.unary(Request::new(message.to_vec()), path, Plain).await?.into_inner())
}
