//! Spare connection IDs: a peer that shows up on another path needs a fresh one (RFC 9000 sections
//! 5.1.1 and 9.5).

/// Issues connection IDs until `keep` are active, or as many as the peer takes; `make` makes one
/// and its reset token. Returns those that were issued.
pub(crate) fn replenish<const N: usize>(
    conn: &mut quiche::Connection,
    keep: usize,
    mut make: impl FnMut() -> Option<([u8; N], [u8; 16])>,
) -> Vec<[u8; N]> {
    let mut issued = Vec::new();
    // Before the handshake is done, the peer's limit is not known.
    if !conn.is_established() || conn.is_draining() || conn.is_closed() {
        return issued;
    }
    while conn.scids_left() > 0 && conn.active_scids() < keep {
        let Some((id, token)) = make() else { break };
        let scid = quiche::ConnectionId::from_ref(&id);
        let token = u128::from_be_bytes(token);
        if conn.new_scid(&scid, token, false).is_err() {
            break;
        }
        issued.push(id);
    }
    issued
}
