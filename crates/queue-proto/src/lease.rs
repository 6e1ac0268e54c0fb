//! Leases.

use queue_core::{Invalid, JobId, Token};

use crate::v1;

/// A lease as it travels.
pub fn lease_ref((job, token): (JobId, Token)) -> v1::LeaseRef {
    v1::LeaseRef { job_id: job.get(), token: token.get() }
}

impl TryFrom<v1::LeaseRef> for (JobId, Token) {
    type Error = Invalid;

    fn try_from(lease: v1::LeaseRef) -> Result<Self, Invalid> {
        Ok((lease.job_id.try_into()?, lease.token.try_into()?))
    }
}
