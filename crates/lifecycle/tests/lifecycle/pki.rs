//! Certificates for a test, as files.

use std::fs;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;

/// An authority, another one that nobody trusts, and a server's and a client's certificate of the first, and a stranger's of the other.
pub struct Pki {
    directory: TempDir,
}

impl Pki {
    pub fn new() -> Self {
        let pki = Self { directory: TempDir::new().unwrap() };
        let authority = pki.authority("ca.pem");
        let other = pki.authority("other-ca.pem");
        pki.issue("server", &authority);
        pki.issue("client", &authority);
        pki.issue("stranger", &other);
        pki
    }

    pub fn file(&self, name: &str) -> String {
        self.directory.path().join(name).to_str().unwrap().to_owned()
    }

    pub fn write(&self, name: &str, content: &str) -> String {
        fs::write(self.file(name), content).unwrap();
        self.file(name)
    }

    fn authority(&self, name: &str) -> CertifiedIssuer<'static, KeyPair> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        self.write(name, &authority.pem());
        authority
    }

    fn issue(&self, name: &str, authority: &CertifiedIssuer<'static, KeyPair>) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["fencepost.test".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, authority).unwrap();
        self.write(&format!("{name}.pem"), &certificate.pem());
        self.write(&format!("{name}.key"), &key.serialize_pem());
    }
}
