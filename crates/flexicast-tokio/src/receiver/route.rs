//! Noticing that this machine's network has changed.

use std::net::IpAddr;

/// The local address that packets to the source leave from.
#[derive(Debug, Default)]
pub(super) struct Route {
    towards: Option<IpAddr>,
    from: Option<IpAddr>,
}

impl Route {
    /// Watches the way to another address.
    pub(super) fn watch(&mut self, towards: IpAddr) {
        *self = Route {
            towards: Some(towards),
            from: netio::route_source(towards).ok(),
        };
    }

    /// Whether packets leave from another address than before. A way that is gone is no change
    /// until there is another: the old one may come back.
    pub(super) fn has_changed(&mut self) -> bool {
        let from = self.towards.and_then(|to| netio::route_source(to).ok());
        self.note(from)
    }

    fn note(&mut self, from: Option<IpAddr>) -> bool {
        let Some(from) = from else { return false };
        self.from.replace(from) != Some(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_no_change_and_another_address_is() {
        let [a, b] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        let mut route = Route::default();
        assert!(!route.has_changed(), "nothing is watched");
        route.watch(IpAddr::from([127, 0, 0, 1]));
        assert!(!route.has_changed());
        assert!(route.note(Some(a)));
        assert!(!route.note(Some(a)));
        assert!(!route.note(None));
        assert!(!route.note(Some(a)), "it came back as it was");
        assert!(route.note(Some(b)));
    }
}
