//! The `status` command: queries a running relay by HTTP.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use service::ask::{self, Bounds};
use service::program::Answer;

use super::model::Status;
use super::view::render;

/// Bounds on the response, in time and length.
const BOUNDS: Bounds = Bounds {
    time: Duration::from_secs(5),
    longest: 64 << 20,
};

/// Queries the relay with HTTP at `address`.
///
/// # Errors
/// If no relay responds there, or another program; in words for the operator.
pub fn status(address: SocketAddr, as_json: bool) -> anyhow::Result<Answer> {
    let status = ask(address)?;
    let text = if as_json {
        format!("{:#}\n", serde_json::to_value(&status)?)
    } else {
        render(&status)
    };
    Ok(Answer {
        text,
        well: !status.draining,
    })
}

/// Returns the relay's status.
pub(super) fn ask(address: SocketAddr) -> anyhow::Result<Status> {
    let to = ask::reached(address);
    let body = get(address).with_context(|| {
        format!("no relay answers at http://{to}/status; is it running, with --http {address}?")
    })?;
    serde_json::from_slice(&body).with_context(|| {
        format!("the program that answers at http://{to}/status is no flexfeed-relay")
    })
}

fn get(address: SocketAddr) -> anyhow::Result<Vec<u8>> {
    let answer = ask::get(address, "/status", "application/json", BOUNDS)?;
    if answer.status != 200 {
        bail!(
            "the answer is {}: {}",
            answer.first_line,
            service::peer_text::plain(&String::from_utf8_lossy(&answer.body))
        );
    }
    Ok(answer.body)
}
