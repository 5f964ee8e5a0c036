//! The source's self-description, for the programs that make enrolment links from it.

use std::net::SocketAddr;

use service::link::Pin;
use store::SourceInfo;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::record::address_warning;

/// Prefix of warnings about the address in links, which the console shows next to each link.
const ADDRESS: &str = "public-address: ";

/// Returns the description at the start.
pub(super) fn describe(
    config: &Config,
    address: &str,
    local: SocketAddr,
    http: SocketAddr,
    pin: &[u8; 32],
) -> SourceInfo {
    let doubt = address_warning(config.public_address.as_ref());
    let mut warnings = config.warnings.clone();
    let about_address = warnings.iter_mut();
    for warning in about_address.filter(|warning| Some(&**warning) == doubt.as_ref()) {
        warning.insert_str(0, ADDRESS);
    }
    SourceInfo {
        holder: config.holder_name.clone(),
        software: concat!("flexfeed-source ", env!("CARGO_PKG_VERSION")).to_owned(),
        started_ms: jiff::Timestamp::now().as_millisecond(),
        public_address: vec![address.to_owned()],
        pins: pins(config, pin),
        listen: local.to_string(),
        http: http.to_string(),
        warnings,
        ..SourceInfo::default()
    }
}

fn pins(config: &Config, pin: &[u8; 32]) -> Vec<String> {
    let next = config.next_pin.filter(|next| next.0 != *pin);
    let pins = [Pin(*pin)].into_iter().chain(next);
    pins.map(|pin| pin.to_string()).collect()
}

/// Updates the description with the certificate until `stop`, and then with the end of the process.
pub(super) async fn keep_up(
    config: Config,
    info: watch::Sender<SourceInfo>,
    mut pin: watch::Receiver<[u8; 32]>,
    stop: CancellationToken,
) {
    let following = async {
        while pin.changed().await.is_ok() {
            let pins = pins(&config, &pin.borrow_and_update());
            info.send_modify(|info| info.pins = pins);
        }
        std::future::pending::<()>().await;
    };
    stop.run_until_cancelled(following).await;
    info.send_modify(|info| info.draining = true);
}
