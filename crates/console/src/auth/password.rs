//! Passwords: argon2id (RFC 9106), a few at a time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use argon2::password_hash::{PasswordHash, PasswordHasher, PasswordVerifier, SaltString};
use argon2::{Algorithm, Argon2, Params, Version};
use tokio::sync::Semaphore;

use super::secret;
use crate::api::problem::Problem;

/// Memory of one hash in KiB, and how often it is gone through: what OWASP's cheat sheet asks for.
const MEMORY: u32 = 19_456;
const ROUNDS: u32 = 2;

/// Number of passwords checked at once: each takes 19 MiB and a core for some hundredths of a
/// second.
const AT_ONCE: usize = 2;

/// Number of requests that wait for that; more are refused.
const WAITING: usize = 32;

/// The fewest characters of a password.
pub const LEAST: usize = 10;

/// The fewest characters of it beside the name.
const LEAST_BESIDE: usize = 4;

/// The most bytes of a password.
pub const MOST: usize = 1_024;

/// Returns the problem of a new password, if any.
#[must_use]
pub fn weakness(password: &str, name: &str) -> Option<String> {
    let mut chars = password.chars();
    let first = chars.next();
    if password.chars().count() < LEAST {
        return Some(format!("a password has at least {LEAST} characters"));
    }
    if password.len() > MOST {
        return Some(format!("a password has at most {MOST} bytes"));
    }
    if chars.all(|c| Some(c) == first) {
        return Some("a password is not one character again and again".to_owned());
    }
    // Of a name with something around it, only that is hard to guess.
    let rest = match name.trim().is_empty() {
        true => password.to_lowercase(),
        false => password
            .to_lowercase()
            .replace(&name.trim().to_lowercase(), ""),
    };
    if rest.chars().count() < LEAST_BESIDE {
        return Some("a password is not little more than the name".to_owned());
    }
    None
}

/// Hashes and checks passwords.
#[derive(Debug)]
pub struct Passwords {
    turns: Arc<Semaphore>,
    waiting: AtomicUsize,
    nobodys: OnceLock<String>,
}

impl Default for Passwords {
    fn default() -> Self {
        Self {
            turns: Arc::new(Semaphore::new(AT_ONCE)),
            waiting: AtomicUsize::new(0),
            nobodys: OnceLock::new(),
        }
    }
}

impl Passwords {
    /// The hash of a password, in the form that is stored.
    ///
    /// # Errors
    /// Too many people sign in at once, or the system gives no random numbers.
    pub async fn hash(&self, password: String) -> Result<String, Problem> {
        self.run(move || hash(&password)).await?
    }

    /// Whether a password matches a stored hash. Without a hash it takes as long and returns false:
    /// timing does not reveal whether a name exists.
    ///
    /// # Errors
    /// Too many sign-ins at once.
    pub async fn is(&self, password: String, stored: Option<String>) -> Result<bool, Problem> {
        let known = stored.is_some();
        let stored = match stored {
            Some(stored) => stored,
            None => match self.nobodys.get() {
                Some(nobodys) => nobodys.clone(),
                None => {
                    let made = self.hash(secret::new_secret()?).await?;
                    self.nobodys.get_or_init(|| made).clone()
                }
            },
        };
        if password.len() > MOST {
            return Ok(false);
        }
        let fits = self.run(move || verify(&password, &stored)).await?;
        Ok(fits && known)
    }

    /// Holds all turns.
    #[cfg(test)]
    pub(crate) async fn all_turns(&self) -> tokio::sync::OwnedSemaphorePermit {
        let all = u32::try_from(AT_ONCE).unwrap_or(u32::MAX);
        let turns = Arc::clone(&self.turns).acquire_many_owned(all).await;
        turns.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Number of turns taken or waited for.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let busy = || Problem::too_many("too many people sign in at once; try again", 2);
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= WAITING {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(busy());
        }
        let _waiting = QueueSlot(&self.waiting);
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        let turn = turn.map_err(|_| busy())?;
        let done = tokio::task::spawn_blocking(move || {
            // The turn ends with the work, also if the request is gone.
            let _turn = turn;
            work()
        });
        done.await.map_err(|error| {
            tracing::error!(%error, "password check failed");
            Problem::internal()
        })
    }
}

struct QueueSlot<'a>(&'a AtomicUsize);

impl Drop for QueueSlot<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The hash of a password in PHC form.
///
/// # Errors
/// The system gives no random numbers.
pub fn hash(password: &str) -> Result<String, Problem> {
    let failed = |what: &dyn std::fmt::Display| {
        tracing::error!(error = %what, "password hashing failed");
        Problem::internal()
    };
    let random = secret::random()?;
    let salt = random.get(..16).unwrap_or_default();
    let salt = SaltString::encode_b64(salt).map_err(|error| failed(&error))?;
    let params = Params::new(MEMORY, ROUNDS, 1, None).map_err(|error| failed(&error))?;
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
        .hash_password(password.as_bytes(), &salt)
        .map(|hash| hash.to_string())
        .map_err(|error| failed(&error))
}

fn verify(password: &str, stored: &str) -> bool {
    let Ok(hash) = PasswordHash::new(stored) else {
        return false;
    };
    // The parameters are those of the stored hash.
    Argon2::default()
        .verify_password(password.as_bytes(), &hash)
        .is_ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn a_password_is_known_again_and_no_other() {
        let passwords = Passwords::default();
        let word = || "correct horse battery".to_owned();
        let stored = passwords.hash(word()).await.unwrap();
        assert!(
            stored.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"),
            "{stored}"
        );
        assert_ne!(stored, passwords.hash(word()).await.unwrap());
        let is = |word: String, hash: Option<&str>| {
            let hash = hash.map(str::to_owned);
            passwords.is(word, hash)
        };
        assert!(is(word(), Some(&stored)).await.unwrap());
        assert!(!is("wrong".into(), Some(&stored)).await.unwrap());
        assert!(!is(word(), None).await.unwrap());
        assert!(!is(word(), Some("nonsense")).await.unwrap());
        assert!(!is("x".repeat(2_000), Some(&stored)).await.unwrap());
    }

    #[test]
    fn weak_passwords_are_refused() {
        for weak in ["", "short", "aaaaaaaaaaaaaa", "operator-operator"] {
            assert!(weakness(weak, "Operator").is_some(), "{weak}");
        }
        assert!(weakness(&"xy".repeat(1_000), "Operator").is_some());
        for good in ["correct horse battery", "пароль-из-слов", "ffffffffff1"] {
            assert_eq!(weakness(good, "Operator"), None, "{good}");
        }
        assert_eq!(weakness("an al1 password", "al"), None);
        assert_eq!(weakness("operator-2026!", "operator"), None);
    }
}
