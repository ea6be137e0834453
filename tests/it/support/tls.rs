//! The other side of HTTPS: a certificate of its own, which a service is told to trust.

use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::support::binary::Service;

/// A server at 127.0.0.1.
pub struct TlsServer {
    pub acceptor: TlsAcceptor,
    /// In PEM.
    certificate: String,
}

impl TlsServer {
    /// One that speaks this protocol alone, as ALPN names it.
    pub fn new(protocol: &str) -> TlsServer {
        let certified = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
        let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).expect("its key");
        let chain = vec![certified.cert.der().clone()];
        let mut config =
            ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).expect("a usable certificate");
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        TlsServer { acceptor: TlsAcceptor::from(Arc::new(config)), certificate: certified.cert.pem() }
    }

    /// The service, which trusts this server alone.
    pub fn trusted_by(&self, service: Service) -> Service {
        let certificate = service.dir.path().join("ca.pem");
        std::fs::write(&certificate, &self.certificate).expect("write the certificate");
        service.with("SSL_CERT_FILE", certificate.display().to_string())
    }
}
