//! Parts of lists that are read as a whole, because they are short: channels, feeds, relays,
//! people, tokens.

use data_encoding::BASE64URL_NOPAD;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::problem::Problem;

/// Maximum and default length of an answer.
const MOST: usize = 10_000;

/// Page of a list.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListQuery {
    /// The previous answer's `next_cursor`.
    pub cursor: Option<String>,
    /// Maximum number of items.
    #[param(minimum = 1, maximum = 10000, default = 10000)]
    pub limit: Option<usize>,
}

impl ListQuery {
    /// Returns the requested page of `items`, in the order of their keys, which are unique; and the
    /// cursor of the next page.
    ///
    /// # Errors
    /// There is no such part.
    pub fn part<T, K: Ord + Serialize + DeserializeOwned>(
        &self,
        mut items: Vec<T>,
        key: impl Fn(&T) -> K,
    ) -> Result<(Vec<T>, Option<String>), Problem> {
        let limit = super::limit(self.limit, MOST, MOST)?;
        items.sort_by_cached_key(&key);
        if let Some(cursor) = &self.cursor {
            let after: K = read(cursor).ok_or_else(|| {
                Problem::malformed("cursor is not one of this list; begin without it")
                    .of_field("cursor")
            })?;
            let begin = items.partition_point(|item| key(item) <= after);
            items.drain(..begin);
        }
        let is_last = items.len() <= limit;
        items.truncate(limit);
        // Texts and numbers can always be written.
        let next = |item: &T| serde_json::to_vec(&key(item)).unwrap_or_default();
        let next = items.last().filter(|_| !is_last).map(next);
        Ok((items, next.map(|json| BASE64URL_NOPAD.encode(&json))))
    }
}

/// Page of a list that goes back in time.
#[derive(Debug, Clone, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct PartQuery {
    /// The previous answer's `next_cursor`.
    pub cursor: Option<String>,
    /// Maximum number of items.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    pub limit: Option<usize>,
}

impl PartQuery {
    /// Returns the id before which the page begins, and its length.
    ///
    /// # Errors
    /// There is no such page.
    pub fn page(&self) -> Result<(Option<i64>, usize), Problem> {
        let limit = super::limit(self.limit, 100, super::moves::MOST)?;
        Ok((super::number_cursor(self.cursor.as_deref())?, limit))
    }
}

/// Returns the cursor of the page after `rows`, by the last number; `None` at the end.
pub fn next_cursor<T, N: ToString>(
    rows: &[T],
    limit: usize,
    number: impl Fn(&T) -> N,
) -> Option<String> {
    let last = rows.last().filter(|_| rows.len() >= limit)?;
    Some(number(last).to_string())
}

fn read<K: DeserializeOwned>(cursor: &str) -> Option<K> {
    let json = BASE64URL_NOPAD.decode(cursor.as_bytes()).ok()?;
    serde_json::from_slice(&json).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn query(cursor: Option<String>, limit: usize) -> ListQuery {
        ListQuery {
            cursor,
            limit: Some(limit),
        }
    }

    #[test]
    fn all_parts_are_the_list() {
        let items = || vec![("b", 2), ("a", 1), ("d", 4), ("c", 3), ("e", 5)];
        let key = |item: &(&str, u8)| (item.0.to_owned(), item.1);
        for limit in 1..=6 {
            let (mut all, mut cursor, mut parts) = (Vec::new(), None, 0);
            loop {
                let (part, next) = query(cursor, limit).part(items(), key).unwrap();
                assert!(!part.is_empty() && part.len() <= limit);
                all.extend(part);
                parts += 1;
                cursor = next;
                if cursor.is_none() {
                    break;
                }
            }
            assert_eq!(
                all.iter().map(|item| item.1).collect::<Vec<_>>(),
                [1, 2, 3, 4, 5]
            );
            assert_eq!(parts, 5_usize.div_ceil(limit));
        }
        // The item named by the cursor may be gone by then.
        let (_, next) = query(None, 2).part(items(), key).unwrap();
        let rest = items().into_iter().filter(|item| item.0 != "b").collect();
        let (part, next) = query(next, 9).part(rest, key).unwrap();
        assert_eq!((part[0].1, part.len(), next), (3, 3, None));
        let (none, next) = query(None, 1).part(Vec::new(), key).unwrap();
        assert!(none.is_empty() && next.is_none());
    }

    #[test]
    fn invalid_cursors_are_refused() {
        let items = || vec![1_i64, 2];
        let number = BASE64URL_NOPAD.encode(b"\"text\"");
        for cursor in ["", "!", "AAAA", &number] {
            let query = query(Some(cursor.to_owned()), 1);
            assert!(query.part(items(), |item| *item).is_err(), "{cursor}");
        }
        for limit in [0, MOST + 1] {
            assert!(query(None, limit).part(items(), |item| *item).is_err());
        }
    }
}
