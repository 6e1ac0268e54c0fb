//! Certificates and keys from files.

use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tonic::transport::{Certificate, Identity};

/// Reads a file of one or more certificates.
pub(crate) fn certificates(flag: &str, path: &Path) -> anyhow::Result<Certificate> {
    Ok(Certificate::from_pem(certificate_bytes(flag, path)?))
}

/// Reads a certificate chain and its key.
pub(crate) fn identity(cert: (&str, &Path), key: (&str, &Path)) -> anyhow::Result<Identity> {
    let chain = certificate_bytes(cert.0, cert.1)?;
    let bytes = read(key.0, key.1)?;
    // Without the cause: it may quote what it could not parse.
    ensure!(PrivateKeyDer::from_pem_slice(&bytes).is_ok(), "{} {} holds no private key in PEM", key.0, key.1.display());
    Ok(Identity::from_pem(chain, bytes))
}

fn certificate_bytes(flag: &str, path: &Path) -> anyhow::Result<Vec<u8>> {
    let bytes = read(flag, path)?;
    let mut found = 0;
    for certificate in CertificateDer::pem_slice_iter(&bytes) {
        certificate.with_context(|| format!("parse {flag} {}", path.display()))?;
        found += 1;
    }
    ensure!(found > 0, "{flag} {} holds no certificate in PEM", path.display());
    Ok(bytes)
}

fn read(flag: &str, path: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("read {flag} {}", path.display()))
}
