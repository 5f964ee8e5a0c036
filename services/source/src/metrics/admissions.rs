//! Admissions of receivers, by result.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use store::Verdict;

use super::labels::ResultLabels;

/// The database did not answer, or the publishing source is unknown.
const UNAVAILABLE: &str = "unavailable";
/// Too many pending requests.
const TOO_MANY: &str = "too-many";
/// The receiver presented no credential of its own.
const NO_CREDENTIAL: &str = "no-credential";

/// All results.
pub(super) const RESULTS: [&str; 12] = [
    "enrolled",
    "known",
    "unknown-token",
    "expired",
    "used-up",
    "token-revoked",
    "channel",
    "revoked",
    "in-use",
    NO_CREDENTIAL,
    UNAVAILABLE,
    TOO_MANY,
];

/// Counter of admissions.
#[derive(Debug, Clone)]
pub struct Admissions(Family<ResultLabels, Counter>);

impl Default for Admissions {
    fn default() -> Self {
        let counters = Family::default();
        for result in RESULTS {
            drop(counters.get_or_create(&ResultLabels { result }));
        }
        Self(counters)
    }
}

impl Admissions {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let admissions = Self::default();
        let help = "Admission requests of receivers, by result";
        registry.register("admissions", help, admissions.0.clone());
        admissions
    }

    /// Counts a verdict of the store.
    pub fn judged(&self, verdict: &Verdict) {
        self.count(match verdict {
            Verdict::Admitted { enrolled: true } => "enrolled",
            Verdict::Admitted { enrolled: false } => "known",
            Verdict::UnknownToken => "unknown-token",
            Verdict::Expired => "expired",
            Verdict::Spent => "used-up",
            Verdict::TokenRevoked => "token-revoked",
            Verdict::Channel(_) => "channel",
            Verdict::Revoked => "revoked",
            Verdict::InUse => "in-use",
        });
    }

    /// Counts a receiver without a credential of its own.
    pub fn without_credential(&self) {
        self.count(NO_CREDENTIAL);
    }

    /// Counts a receiver that could not be judged at the moment.
    pub fn unavailable(&self) {
        self.count(UNAVAILABLE);
    }

    /// Counts a receiver that was refused because too many waited already.
    pub fn too_many(&self) {
        self.count(TOO_MANY);
    }

    fn count(&self, result: &'static str) {
        self.0.get_or_create(&ResultLabels { result }).inc();
    }

    #[cfg(test)]
    pub(crate) fn counted(&self, result: &'static str) -> u64 {
        self.0.get_or_create(&ResultLabels { result }).get()
    }
}
