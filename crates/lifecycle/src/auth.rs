//! The check of the bearer token.

use subtle::ConstantTimeEq;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::service::Interceptor;
use tonic::{Request, Status};

use client::Secret;

const SCHEME: &str = "Bearer ";

/// Lets only callers with the token through; everybody if there is none. An interceptor for tonic's services.
#[derive(Debug, Clone)]
pub struct Auth(Option<Secret>);

impl Auth {
    /// Asks for this token, or for nothing.
    pub fn new(token: Option<Secret>) -> Self {
        Self(token)
    }

    /// Checks the `authorization` header of a call.
    ///
    /// Answers `UNAUTHENTICATED` without saying what was wrong with a token. The time it takes depends on the length of
    /// the token given, not on its content.
    pub fn check(&self, metadata: &MetadataMap) -> Result<(), Status> {
        let Some(expected) = &self.0 else { return Ok(()) };
        let given = metadata.get("authorization").map(MetadataValue::as_bytes);
        match given.and_then(bearer) {
            None => Err(Status::unauthenticated("a token is required: send `authorization: Bearer <token>`")),
            Some(given) if bool::from(given.ct_eq(expected.expose().as_bytes())) => Ok(()),
            Some(_) => Err(Status::unauthenticated("the token is not valid")),
        }
    }
}

impl Interceptor for Auth {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        self.check(request.metadata())?;
        Ok(request)
    }
}

/// The token of a header. The scheme's name is case-insensitive (RFC 9110, 11.1).
fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = header.split_at_checked(SCHEME.len())?;
    scheme.eq_ignore_ascii_case(SCHEME.as_bytes()).then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    fn check(header: Option<&str>) -> Result<(), Code> {
        let mut metadata = MetadataMap::new();
        if let Some(header) = header {
            metadata.insert("authorization", header.parse().unwrap());
        }
        Auth::new(Some(Secret::new("right"))).check(&metadata).map_err(|status| status.code())
    }

    #[test]
    fn only_the_right_token_passes() {
        assert_eq!(check(Some("Bearer right")), Ok(()));
        assert_eq!(check(Some("bearer right")), Ok(()));
        for wrong in ["Bearer wrong", "Bearer righ", "Bearer rightt", "Bearer ", "Basic right", "right", ""] {
            assert_eq!(check(Some(wrong)), Err(Code::Unauthenticated), "{wrong}");
        }
        assert_eq!(check(None), Err(Code::Unauthenticated));
    }

    #[test]
    fn without_a_token_everybody_passes() {
        assert!(Auth::new(None).check(&MetadataMap::new()).is_ok());
    }

    #[test]
    fn a_refusal_does_not_tell_the_token() {
        let auth = Auth::new(Some(Secret::new("right")));
        let status = auth.check(&MetadataMap::new()).unwrap_err();
        assert!(!format!("{auth:?} {status:?}").contains("right"));
    }
}
